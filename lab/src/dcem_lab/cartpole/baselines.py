"""Baselines for the cartpole's latent spaces, on the same states.

    dcem train cartpole-baselines

- Experts: CEM over all 20 actions. The paper's has N=100, k=10, T=30; the strong one N=1000, k=10, T=10.
- PCA: the two principal directions of expert plans, searched on a grid.
- Autoencoders of expert plans, whose latent space is searched like a learned one: the alternative that the
  paper argues against, because they reproduce plans regardless of their cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dcem import DCEM, MPC, Decoder, Gaussian
from dcem.systems.cartpole import Cartpole
from dcem_lab.cartpole import shipped
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.scores import CostOf, Score, plan_scores, scores, write_scores
from dcem_lab.cartpole.shipped import with_the_papers_search
from dcem_lab.cartpole.train import HORIZON
from dcem_lab.runs import Kept, Run, RunError
from dcem_lab.runs.export import whole_log
from dcem_lab.runs.files import regular_file
from dcem_lab.runs.settings import Settings, setting

# N, k, T and how many draws to average over: the nearly optimal one is slow and hardly varies.
EXPERTS = {
    "expert-100-10-30": (100, 10, 30, 8),
    "expert-1000-10-10": (1000, 10, 10, 8),
    "expert-1000-100-10": (1000, 100, 10, 8),
    "expert-4000-40-40": (4000, 40, 40, 4),
}
PAPER, STRONG = "expert-100-10-30", "expert-1000-10-10"
SCORES = "scores.csv"


@dataclass(frozen=True)
class Config(Settings):
    """Evaluate CEM experts, and fit PCA and autoencoders to their plans.

    seed: seed of the states that the experts plan from.
    experts: which experts to evaluate.
    plans: number of expert plans that PCA and autoencoders are fitted to.
    grid: points per side of the grid on which PCA is searched.
    latent_dims, seeds: one autoencoder for each combination.
    updates, batch, lr: training settings of an autoencoder.
    states: number of initial states to average over.
    draws: maximum number of solves to average over.
    """

    seed: int = 0
    experts: tuple[str, ...] = setting(tuple(EXPERTS), among=EXPERTS)
    plans: int = setting(4000, least=1)
    grid: int = setting(200, least=1)
    latent_dims: tuple[int, ...] = setting((2, 8, 16), least=1)
    seeds: tuple[int, ...] = setting((0, 1, 2), least=0)
    updates: int = setting(2000, least=1)
    batch: int = setting(256, least=1)
    lr: float = setting(1e-3, above=0)
    states: int = setting(100, least=1)
    draws: int = setting(8, least=1)


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {
        "experts": (PAPER,), "plans": 20, "grid": 5, "latent_dims": (2,), "seeds": (0,), "updates": 3,
        "batch": 8, "states": 4, "draws": 2,
    },
}  # fmt: skip


def run(config: Config, run: Run) -> None:
    """Score one baseline after the other, then write scores.csv into the run folder."""
    tasks = list(baselines(config))
    done: dict[str, Any] = {"rows": []}
    for step in run.steps(len(tasks), {"done": done}, save_every=0):
        rows = list(tasks[step]())
        done["rows"] += [list(row) for row in rows]
        validation = [row.cost for row in rows if row.states == "validation"]
        run.log(step, cost=sum(validation) / len(validation))
    write_scores(run.folder / SCORES, (Score(*row) for row in done["rows"]))


def baselines(config: Config) -> Iterator[Callable[[], Iterator[Score]]]:
    """Functions that score a baseline each."""

    @cache
    def plans(expert: str) -> Tensor:
        return expert_plans(expert, config.plans, config.seed)

    def pca(name: str, teacher: str) -> Iterator[Score]:
        cost_of = grid_cost(PCA(plans(teacher), 2), config.grid)
        # A grid search has no noise: draws differ only in the new states.
        return scores(name, cost_of, config.grid**2, min(2, config.draws), config.states)

    def autoencoder(dim: int, seed: int) -> Iterator[Score]:
        decoder = train_autoencoder(plans(STRONG), dim, seed, config)
        for method, tau in (("cem", 0.0), ("dcem", 1.0)):
            mpc, name = with_the_papers_search(decoder, tau), f"autoencoder-{dim}-{method}-seed{seed}"
            yield from plan_scores(name, mpc, min(2, config.draws), config.states)

    for name in config.experts:
        draws = min(EXPERTS[name][3], config.draws)
        yield partial(plan_scores, name, expert_controller(name), draws, config.states)
    yield partial(pca, "pca-2", PAPER)
    yield partial(pca, "pca-2-strong", STRONG)
    for dim, seed in product(config.latent_dims, config.seeds):
        yield partial(autoencoder, dim, seed)


def expert_controller(name: str) -> MPC:
    """CEM over the whole action sequence, with an initial spread as wide as the box."""
    n_samples, n_elite, n_iters, _ = EXPERTS[name]
    force = Cartpole().max_force
    distribution = Gaussian(sigma=force, estimator="likelihood")
    solver = DCEM(n_samples=n_samples, n_elite=n_elite, n_iters=n_iters, tau=0, distribution=distribution)
    return MPC(Cartpole(), HORIZON, -force, force, solver=solver)


def expert_or_shipped(name: str) -> MPC:
    """A controller that others are compared with, by its name."""
    return expert_controller(name) if name in EXPERTS else shipped.load(name)


@torch.no_grad()
def expert_plans(name: str, count: int, seed: int) -> Tensor:
    """The expert's action sequences (count, H) from random initial states."""
    generator = Generator().manual_seed(seed + 1)  # not the validation states
    states = Cartpole.initial_states(count, generator=generator)
    mpc = expert_controller(name)
    parts = [mpc(part, generator=generator, cost=False).actions for part in states.split(250)]
    return torch.cat(parts).squeeze(-1)


class PCA(nn.Module):
    """A linear decoder: the mean plan, plus z along the principal directions.

    z in [-1, 1]^d spans the range that the plans (P, H) themselves have along each direction.
    """

    def __init__(self, plans: Tensor, latent_dim: int) -> None:
        super().__init__()
        self.latent_dim, self.horizon, self.action_dim = latent_dim, plans.shape[1], 1
        self.limit = Cartpole().max_force
        self.mean = plans.mean(0)
        _, _, directions = torch.linalg.svd(plans - self.mean, full_matrices=False)
        self.directions = directions[:latent_dim]  # (d, H)
        along = (plans - self.mean) @ self.directions.mT
        self.middle, self.reach = (along.amax(0) + along.amin(0)) / 2, (along.amax(0) - along.amin(0)) / 2

    def forward(self, z: Tensor, state: Tensor | None = None) -> Tensor:
        """z (..., d) -> actions (..., H, 1), clamped to the box."""
        plan = self.mean + (self.middle + self.reach * z) @ self.directions
        return plan.clamp(-self.limit, self.limit).unsqueeze(-1)


def grid_points(size: int) -> Tensor:
    """(size², 2): a grid on [-1, 1]²; the second number varies fastest."""
    axis = torch.linspace(-1, 1, size)
    return torch.cartesian_prod(axis, axis)


def grid_cost(decoder: Any, size: int) -> CostOf:
    """The cost of the best point on a grid over a two-dimensional latent space."""
    mpc = MPC(Cartpole(), HORIZON, decoder=decoder)
    points = grid_points(size)

    def cost_of(states: Tensor, generator: Generator) -> Tensor:
        parts = states.split(10)
        return torch.cat([mpc.total_cost(points.expand(len(p), -1, -1), p).amin(-1) for p in parts])

    return cost_of


@torch.enable_grad()
def train_autoencoder(plans: Tensor, latent_dim: int, seed: int, config: Config) -> Decoder:
    """The decoder of an autoencoder that reproduces plans (P, H), with latent codes in [-1, 1]^d."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = cartpole.new_decoder(cartpole.Member(latent_dim, 1.0, seed), cartpole.Config())
        encoder = nn.Sequential(
            nn.Linear(HORIZON, 256), nn.ELU(), nn.Linear(256, 256), nn.ELU(), nn.Linear(256, latent_dim)
        )
    scale = Cartpole().max_force
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=config.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.updates)
    generator = Generator().manual_seed(seed)
    for _ in range(config.updates):
        batch = plans[torch.randint(len(plans), (config.batch,), generator=generator)]
        again = decoder(torch.tanh(encoder(batch / scale))).squeeze(-1)
        loss = ((again - batch) / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return decoder.requires_grad_(False)


def keep(folder: Path, record: dict[str, Any]) -> Iterator[Kept]:
    """All scores, and the log."""
    if record["status"] != "finished":
        raise RunError(f"{folder} is {record['status']}; only a finished run has its scores")
    scores = {SCORES: regular_file(folder, SCORES).read_bytes()}
    for log in whole_log(folder, record):
        yield log._replace(experiment="cartpole", variant="baselines", tables=scores)
