"""Can the walker's decoder learn to get up? It is trained alone on the states in which it stays down.

    python -m dcem_lab.suite.decoder_when_down

A diagnosis in half an hour on a CPU, not the paper's phase 2: the model is frozen, no data is collected on
the way, and the gradient skips the search (`decoder.backward=detach`). Most states of a batch have a low
reward. It is done with plans of one latent point, as the decoder was made, and of three in a row. Before and
after, the controller plays the first seconds of other episodes that it loses.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Generator, Tensor

from dcem_lab.runs.files import write_csv
from dcem_lab.runs.record import recorded
from dcem_lab.suite.agents.planner import DTYPES, fast_rollout
from dcem_lab.suite.rssm.fast.imagine import FrozenRollout
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.where_down import LOW, begin, load, lost_seeds, play
from dcem_lab.training.fit import descend

DOWN_STATES, UP_STATES = 6, 2  # per update
LR, CLIP, AVERAGE = 3e-4, 1.0, 0.97
LOG_EVERY = 20


def longer(trained: Trained, points: int) -> Trained:
    """The same controller with plans of so many latent points."""
    return replace(trained, planner=replace(trained.planner, latent_points=points))


def learn(trained: Trained, down: Tensor, up: Tensor, updates: int) -> Iterator[tuple[int, float, float]]:
    """Train the decoder in place, which ends as the moving average of its weights.

    Yields updates and the mean promise per decision since the last line, from states of either kind.
    """
    generator, decoder = Generator().manual_seed(0), trained.decoder
    assert decoder is not None
    parameters: list[Tensor] = list(decoder.requires_grad_(True).parameters())
    averages = [x.detach().clone() for x in parameters]
    optimizer = torch.optim.Adam(parameters, LR)
    planner, imagination = trained.planner, FrozenRollout(trained.model)
    search = planner.mpc(trained.model, fast_rollout(trained.model, DTYPES[planner.dtype]), decoder)
    found = []
    for update in range(1, updates + 1):
        states = torch.cat(
            [
                x[torch.randint(len(x), (n,), generator=generator)]
                for n, x in ((DOWN_STATES, down), (UP_STATES, up))
            ]
        )
        with torch.no_grad():
            z = search(states, generator=generator, cost=False).latent
        actions = search.decoder(z)
        cost = imagination.sequence_cost(states, actions.unsqueeze(1)).squeeze(1)
        descend(cost.mean(), parameters, optimizer, CLIP)
        torch._foreach_lerp_(averages, [x.detach() for x in parameters], 1 - AVERAGE)
        found.append(-cost.detach() / actions.shape[-2])
        if update % LOG_EVERY == 0 or update == updates:
            promises = torch.stack(found)
            yield update, promises[:, :DOWN_STATES].mean().item(), promises[:, DOWN_STATES:].mean().item()
            found = []
    with torch.no_grad():
        torch._foreach_copy_(parameters, averages)
    decoder.requires_grad_(False)


def write(
    name: str,
    controller: str,
    results: Path,
    episodes: int,
    others: int,
    decisions: int,
    updates: list[int],
    weights: Path | None = None,
) -> Path:
    """Curves of the trainings, and rewards before and after; returns their folder."""
    lost = lost_seeds(results, controller)
    played_for, trained_on = lost[:episodes], lost[episodes : episodes + others]
    won = [seed for seed in range(min(lost), max(lost)) if seed not in lost][: others // 2]
    folder = results / "dmc" / "getting-up"
    curve: list[list[object]] = []
    rows: list[list[object]] = []

    def evaluate(trained: Trained, done: int) -> None:
        rewards = play(trained, begin(trained, played_for), decisions).recent()
        for seed, reward in zip(played_for, rewards.tolist(), strict=True):
            rows.append([trained.planner.latent_points, done, seed, decisions, f"{reward:.3f}"])
        write_csv(folder / f"{name}.csv", GETTING_UP, rows)

    options = {"controller": controller, "episodes": episodes, "others": others, "decisions": decisions}
    with recorded(folder, __spec__.name, name, **options, updates=updates):
        trained = load(name)
        moment = play(trained, begin(trained, trained_on + won), decisions)
        is_down = moment.rewards.flatten() < LOW
        states = moment.states(trained.model)[:-1].flatten(0, 1)
        for points, most in zip((1, 3), updates, strict=True):
            trained = longer(load(name), points)
            evaluate(trained, 0)
            for done, *promises in learn(trained, states[is_down], states[~is_down], most):
                curve.append([points, done, *(f"{x:.3f}" for x in promises)])
                write_csv(folder / f"{name}-training.csv", CURVE, curve)
            evaluate(trained, most)
            if weights is not None:
                trained.ship(f"{name}-{points}", weights)
    return folder


CURVE = ["latent_points", "updates", "promise_down", "promise_up"]
GETTING_UP = ["latent_points", "updates", "episode_seed", "decisions", "reward"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the walker's decoder where it stays down.")
    parser.add_argument("name", nargs="?", default="walker-walk-dcem", help="weights of a latent controller")
    parser.add_argument("--controller", default="latent-dcem", help="its name in the table of evaluations")
    parser.add_argument("--episodes", type=int, default=8, help="lost episodes to play before and after")
    parser.add_argument("--others", type=int, default=12, help="lost episodes with states to train on")
    parser.add_argument("--decisions", type=int, default=120, help="in each of them")
    parser.add_argument("--updates", type=int, nargs=2, default=[100, 240], help="for one point, and for 3")
    parser.add_argument("--results", type=Path, default=Path("lab/results"))
    parser.add_argument("--weights", type=Path, help="a folder for the trained weights")
    print(f"wrote {write(**vars(parser.parse_args()))}")


if __name__ == "__main__":
    main()
