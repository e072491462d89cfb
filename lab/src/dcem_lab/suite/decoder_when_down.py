"""Can the walker's decoder learn to get up? It is trained with longer plans, in episodes of its own.

    python -m dcem_lab.suite.decoder_when_down

The paper's phase 2 in small, for a CPU: online, but the model is frozen, the decoder begins as it ships, and
the gradient skips the search (`decoder.backward=detach`). Every plan that is made to act is also learned
from. Episodes are short and begin with a torso turned backwards three times of four. The controller then
plays the first seconds of evaluation episodes that it had lost and won, and before training of lost ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from itertools import count, cycle, islice, tee
from pathlib import Path

import torch
from torch import Generator, Tensor

from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import recorded
from dcem_lab.suite.agents.controller import on_device
from dcem_lab.suite.agents.planner import DTYPES, fast_rollout
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.walker_starts import angles
from dcem_lab.suite.where_down import CPU, arguments, begin, load, lost_seeds, play
from dcem_lab.training.descent import descend

ENVIRONMENTS, LENGTH = 8, 60  # decisions in an episode
UPDATES, BATCH, KEPT = 4, 32, 250  # per step of all environments, plans in each, steps to draw them from
LR, CLIP, AVERAGE = 3e-4, 1.0, 0.99
LOG_EVERY = 20
FIRST = 20_000  # seed of an episode to learn in; evaluations have others
CURVE = ["latent_points", "steps", "promise", "reward"]
GETTING_UP = ["latent_points", "steps", "start", "episode_seed", "decisions", "reward"]


def starts() -> Iterator[int]:
    """Seeds of episodes: all whose torso is turned backwards at the start, and one of four others."""
    others, (seeds, again) = cycle([True, False, False, False]), tee(count(FIRST))
    for seed, angle in zip(seeds, angles(again), strict=False):
        if angle <= 0 or next(others):
            yield seed


def learn(trained: Trained, steps: int) -> Iterator[tuple[int, float, float]]:
    """Train the decoder in place, which ends as the moving average of its weights.

    Yields steps, and means since the last line: of the promise per decision of the plans learned from, and of
    the reward in the last third of episodes.
    """
    model, decoder, generator = trained.model, trained.decoder, Generator().manual_seed(0)
    assert decoder is not None
    parameters: list[Tensor] = list(decoder.requires_grad_(True).parameters())
    averages = [x.detach().clone() for x in parameters]
    optimizer = torch.optim.Adam(parameters, LR)
    imagination = FrozenRollout(model)
    search = trained.planner.mpc(model, fast_rollout(model, DTYPES[trained.planner.dtype]), decoder)
    plans: deque[tuple[Tensor, Tensor]] = deque(maxlen=KEPT)
    promises, rewards, seeds = list[float](), list[Tensor](), starts()
    with closing(ParallelEnv(trained.environment(), ENVIRONMENTS)) as envs:
        state = model.initial(on_device(envs.reset(seed=[*islice(seeds, ENVIRONMENTS)])[0], CPU))
        age = torch.arange(ENVIRONMENTS) * LENGTH // ENVIRONMENTS  # so that they do not end together
        for step in range(1, steps + 1):
            with torch.no_grad():
                plan = search(state, generator=generator, cost=False)
                plans.append((state, plan.latent))
                observation, reward, *_ = envs.step(plan.action.numpy())
                state = model.observe(state, plan.action, on_device(observation, CPU))
            rewards.append(torch.from_numpy(reward)[age >= LENGTH * 2 // 3])
            age += 1
            if (over := age >= LENGTH).any():
                fresh = [next(seeds) if ended else None for ended in over]
                observation, _ = envs.reset(seed=fresh, options={"reset_mask": over.numpy()})
                state = torch.where(over.unsqueeze(-1), model.initial(on_device(observation, CPU)), state)
                age[over] = 0
            states, latent = (torch.cat(x) for x in zip(*plans, strict=True))
            for _ in range(UPDATES):
                rows = torch.randint(len(states), (BATCH,), generator=generator)
                actions = search.decoder(latent[rows])
                cost = imagination.sequence_cost(states[rows], actions.unsqueeze(1)).mean()
                descend(cost, parameters, optimizer, CLIP)
                torch._foreach_lerp_(averages, [x.detach() for x in parameters], 1 - AVERAGE)
                promises.append(-cost.item() / actions.shape[-2])
            if step % LOG_EVERY == 0 or step == steps:
                yield step, sum(promises) / len(promises), torch.cat(rewards).mean().item()
                promises, rewards = [], []
    with torch.no_grad():
        torch._foreach_copy_(parameters, averages)
    decoder.requires_grad_(False)


def write(
    name: str,
    controller: str,
    results: Path,
    points: int,
    steps: int,
    lost: int,
    won: int,
    decisions: int,
    weights: Path,
) -> Path:
    """The curve of the training, and rewards before and after; returns their folder."""
    down = lost_seeds(results, controller)
    folder = results / "dmc" / "getting-up" / f"points-{points}-steps-{steps}"
    seeds = {"lost": down[:lost], "won": [x for x in range(down[0], down[-1]) if x not in down][:won]}
    curve, rows = list[list[object]](), list[list[object]]()

    def evaluate(trained: Trained, done: int, start: str) -> None:
        rewards = play(trained, begin(trained, seeds[start]), decisions).recent()
        for seed, reward in zip(seeds[start], rewards.tolist(), strict=True):
            rows.append([points, done, start, seed, decisions, f"{reward:.3f}"])
        write_csv(folder / f"{name}.csv", GETTING_UP, rows)

    options = {"controller": controller, "points": points, "steps": steps, "lost": lost, "won": won}
    with recorded(folder, __spec__.name, name, **options, decisions=decisions):
        trained = load(name, latent_points=points)
        for done, *means in learn(trained, steps):
            curve.append([points, done, *(f"{x:.3f}" for x in means)])
            write_csv(folder / f"{name}-training.csv", CURVE, curve)
        trained.ship(f"{name}-{points}", weights)
        for start in seeds:
            evaluate(trained, steps, start)
        evaluate(load(name, latent_points=points), 0, "lost")
    return folder


if __name__ == "__main__":
    given = arguments(
        "Train the walker's decoder to get up.",
        points=2,
        steps=240,
        lost=12,
        won=6,
        decisions=60,
        weights=Path("out/weights"),
    )
    print(f"wrote {write(**given)}")
