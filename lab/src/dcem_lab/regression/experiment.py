"""Energy-based regression onto x sin x (Section 5.1): what the inner optimiser does to the energy surface.

An energy network E(y | x) is trained so that ŷ = argmin_y E(y | x) fits the data, the argmin being found by
DCEM or by unrolled gradient descent. Afterwards the surface is evaluated, and solved with more and with fewer
iterations than in training.

All seeds of a run train in parallel, as members of one stacked network. Each has its own initial weights,
data order, sampling noise, gradient norm, Adam moments and learning-rate schedule, and no operation mixes
members. The results have the same distribution as separate runs, at little more than the cost of one.
"""

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from dcem import DCEM, Argmin, Gaussian, GradientDescent, Solver, capture
from dcem_lab.regression.energy import EnergyNetwork
from dcem_lab.runs import Kept, Run, RunError, read_records, require
from dcem_lab.runs.files import regular_file, write_csv
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.runs.state import Restorable
from dcem_lab.training.devices import choose_device
from dcem_lab.training.members import MemberAdam, Plateau


@dataclass(frozen=True)
class Config(Settings):
    """Fit x sin x with a learned energy, through DCEM or gradient descent. The defaults are the paper's.

    seed: the first seed.
    seeds: number of seeds trained together: seed, seed + 1, ...
    method: solver for ŷ in training: dcem, or gd for unrolled gradient descent.
    n_iters: inner iterations in training.
    n_iters_spread: if positive, every update uses a random number of iterations, n_iters ± this.
    n_samples, n_elite, tau: setting of DCEM.
    sigma: initial standard deviation of DCEM; for gd, the spread of the additional starting points.
    step_size: step size of gd.
    starts: starting points of gd; the result with the lowest energy is returned.
    hidden: widths of the energy network.
    points: number of equally spaced data points.
    updates: total number of updates.
    updates_per_point: updates on the same points before new ones are drawn.
    batch: points per update.
    lr: learning rate of Adam.
    schedule: learning-rate schedule: plateau, halved when progress stops, or cosine, to 0 at the last update.
    clip: maximum norm of the gradients.
    patience: measurements without progress before the learning rate is halved.
    eval_every: updates between measurements.
    eval_iters: after training, evaluate with up to this many iterations.
    eval_draws: after training, number of solves to average over.
    compile: on a CPU, compile the solves with torch.compile: about a minute to start, then faster updates.
    """

    seed: int = 0
    seeds: int = setting(3, least=1)
    method: str = setting("dcem", among=("dcem", "gd"))
    n_iters: int = setting(10, least=1)
    n_iters_spread: int = setting(0, least=0)
    n_samples: int = setting(100, least=1)
    n_elite: int = setting(10, least=1)
    tau: float = setting(1.0, least=0)
    sigma: float = setting(7.0, above=0)
    step_size: float = setting(0.1, above=0)
    starts: int = setting(1, least=1)
    hidden: tuple[int, ...] = setting((128, 128, 128), least=1, some=True)
    points: int = setting(100, least=2)
    updates: int = setting(100_000, least=1)
    updates_per_point: int = setting(3, least=1)
    batch: int = setting(1, least=1)
    lr: float = setting(1e-3, above=0)
    schedule: str = setting("plateau", among=("plateau", "cosine"))
    clip: float = setting(1.0, above=0)
    patience: int = setting(20, least=1)
    eval_every: int = setting(200, least=1)
    eval_iters: int = setting(30, least=1)
    eval_draws: int = setting(10, least=1)
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n_elite <= self.n_samples, "n_elite", self.n_elite, "at most n_samples")
        require(self.n_iters_spread < self.n_iters, "n_iters_spread", self.n_iters_spread, "below n_iters")
        require(self.eval_iters >= self.n_iters, "eval_iters", self.eval_iters, "at least n_iters")


# The variants of the study, then small versions of it.
PRESETS: dict[str, dict[str, object]] = {
    "dcem": {},
    "dcem-60k": {"updates": 60_000, "schedule": "cosine"},
    "gd": {"method": "gd"},
    "gd-starts": {"method": "gd", "starts": 10},
    "gd-steps": {"method": "gd", "n_iters_spread": 5},
    "dcem-T3": {"n_iters": 3},
    "dcem-T5": {"n_iters": 5},
    "dcem-tau0.1": {"tau": 0.1},
    "quick": {
        "seeds": 1, "updates": 1000, "updates_per_point": 1, "batch": 8, "hidden": (64, 64, 64), "lr": 3e-3,
        "n_samples": 30, "n_elite": 3, "eval_every": 100, "eval_draws": 1,
    },
    "tiny": {
        "seeds": 2, "updates": 12, "hidden": (8, 8), "points": 6, "n_samples": 8, "n_elite": 3, "n_iters": 3,
        "eval_every": 4, "eval_iters": 5, "eval_draws": 2,
    },
}  # fmt: skip


def run(config: Config, run: Run) -> None:
    """Train all seeds, then write one CSV per seed and figure into the run folder (see `export`)."""
    device = choose_device()
    generator = torch.Generator(device).manual_seed(config.seed)
    x, y = (data.to(device).expand(config.seeds, -1, -1) for data in dataset(config.points))
    energy = EnergyNetwork(1, 1, config.hidden, members=config.seeds).to(device)
    model = Argmin(energy, solver_for(config), n=1)
    optimizer = MemberAdam(list(energy.parameters()), config.lr, config.clip).to(device)
    plateau = Plateau(config.seeds, config.patience).to(device)
    how: dict[str, Any] = {"generator": generator, "compile": config.compile}
    changes = [*energy.parameters(), *optimizer.buffers()]
    update = capture(partial(learn, config, model, optimizer, generator), changes=changes, **how)
    measure = capture(lambda x: model(x, generator=generator), **how)
    batch = {"index": torch.zeros(config.seeds, config.batch, 1, dtype=torch.long)}
    state: dict[str, Restorable] = {
        "energy": energy,
        "optimizer": optimizer,
        "plateau": plateau,
        "noise": generator,
        "batch": batch,
    }

    def mse() -> Tensor:
        with torch.no_grad():
            return (measure(x) - y).square().mean((-2, -1))

    def log(step: int, mse: Tensor) -> None:
        by_seed = {f"mse_{i}": value for i, value in enumerate(mse.tolist())}
        rates = {f"lr_{i}": value for i, value in enumerate(optimizer.lr.tolist())}
        run.log(step, mse=mse.mean(), **by_seed, **rates)

    for step in run.steps(config.updates, state):
        if step % config.eval_every == 0:
            error = mse()
            if config.schedule == "plateau":
                optimizer.lr.mul_(plateau(error))
            else:
                optimizer.lr.fill_(config.lr * (1 + math.cos(math.pi * step / config.updates)) / 2)
            log(step, error)
        if step % config.updates_per_point == 0:
            shape = (config.seeds, config.batch, 1)
            batch["index"] = torch.randint(config.points, shape, generator=generator, device=device)
        index = batch["index"].to(device)
        update(x.gather(1, index), y.gather(1, index))
    log(config.updates, mse())
    write_evaluation(config, model, x, y, generator, run.folder)


def dataset(points: int) -> tuple[Tensor, Tensor]:
    """x and x sin x at equally spaced points of [0, 2π], each (points, 1)."""
    x = torch.linspace(0, 2 * math.pi, points).unsqueeze(-1)
    return x, x * x.sin()


def solver_for(config: Config) -> Solver:
    if config.method == "gd":
        return GradientDescent(
            n_iters=config.n_iters,
            learning_rate=config.step_size,
            n_samples=config.starts,
            sigma=config.sigma,
        )
    return DCEM(
        n_samples=config.n_samples,
        n_elite=config.n_elite,
        n_iters=config.n_iters,
        tau=config.tau,
        normalize=True,
        distribution=Gaussian(sigma=config.sigma, estimator="likelihood"),
    )


@torch.enable_grad()
def learn(
    config: Config, model: Argmin, optimizer: MemberAdam, generator: Generator, x: Tensor, y: Tensor
) -> Tensor:
    """One update of every member on its own points x (S, B, 1) and y (S, B, 1); returns their losses (S,)."""
    loss = (predict(config, model, generator, x) - y).square().mean((-2, -1))
    # The sum keeps members independent: each loss depends only on the parameters of its own member.
    parameters = optimizer.parameters_of_members
    optimizer.step(torch.autograd.grad(loss.sum(), parameters, materialize_grads=True))
    return loss.detach()


def predict(config: Config, model: Argmin, generator: Generator, x: Tensor) -> Tensor:
    """ŷ (S, B, 1) after as many iterations as an update takes."""
    n_iters, spread = config.n_iters, config.n_iters_spread
    if spread == 0:
        return model(x, generator=generator)
    # Run the most iterations and pick an iterate: shapes stay fixed, and each member can choose.
    path = iterates(model, x, n_iters + spread, generator).unsqueeze(-1)
    least, most = n_iters - spread, n_iters + spread
    last = torch.randint(least, most + 1, (x.shape[0], 1, 1, 1), generator=generator, device=x.device)
    return path.gather(1, (last - 1).expand(-1, 1, *path.shape[2:])).squeeze(1)


# After training

TABLES = ("iterations", "predictions", "energy", "minima")


@torch.no_grad()
def write_evaluation(
    config: Config, model: Argmin, x: Tensor, y: Tensor, generator: Generator, folder: Path
) -> None:
    """The figures of every seed, as CSVs in `folder`: seed<k>_iterations, _predictions, _energy, _minima."""
    draws = [iterates(model, x, config.eval_iters, generator) for _ in range(config.eval_draws)]
    errors = torch.stack([(draw - y.mT).square().mean(-1) for draw in draws]).mean(0)  # (S, T)
    predictions = draws[0]
    precise: Any = deepcopy(model.energy)
    precise.double()  # so that rounding does not create minima
    nearest = nearest_minimum(precise, x.double(), predictions[:, config.n_iters - 1].double())
    grid_x, grid_y, surface = energy_surface(precise, config.seeds, x.device)
    counts = [str(t + 1) for t in range(config.eval_iters)]
    for i in range(config.seeds):
        name = f"seed{config.seed + i}"
        data = (x[i, :, 0], y[i, :, 0])
        solved = (*data, predictions[i, config.n_iters - 1], nearest[i])
        tables = (
            (["iterations", "mse"], zip(map(int, counts), errors[i].tolist(), strict=True)),
            (["x", "y", *counts], torch.stack([*data, *predictions[i]], -1).tolist()),
            (["y", *map(_short, grid_x)], torch.stack([grid_y, *surface[i]], -1).tolist()),
            (["x", "y", "prediction", "minimum"], torch.stack(solved, -1).tolist()),
        )
        for table, (columns, rows) in zip(TABLES, tables, strict=True):
            write_csv(folder / f"{name}_{table}.csv", columns, rows, digits=6)


def iterates(model: Argmin, x: Tensor, n_iters: int, generator: Generator) -> Tensor:
    """The predictions for x (S, P, 1) after 1, ..., n_iters iterations, (S, n_iters, P)."""
    trace = model.solve(x, n_iters=n_iters, trace=True, cost=False, generator=generator).trace or ()
    return torch.stack([record.mean.squeeze(-1) for record in trace], dim=1)


def nearest_minimum(
    energy: EnergyNetwork, x: Tensor, prediction: Tensor, reach: float = 15.0, spacing: float = 0.02
) -> Tensor:
    """The local minimum of E(·|x) that is nearest to the prediction (S, P), or NaN where there is none.

    Found among the points of a grid on [-reach, reach] that lie below both neighbours, then refined.
    """
    grid = torch.arange(-reach, reach + spacing, spacing, dtype=x.dtype, device=x.device)
    found = []
    for part, near in zip(x.split(10, dim=1), prediction.split(10, dim=1), strict=True):
        values = energy(part.unsqueeze(-2), grid.expand(*near.shape, -1).unsqueeze(-1))
        low = (values[..., 1:-1] < values[..., :-2]) & (values[..., 1:-1] <= values[..., 2:])
        distance = torch.where(low, (grid[1:-1] - near.unsqueeze(-1)).abs(), math.inf)
        gap, index = distance.min(-1)
        found.append(torch.where(gap.isfinite(), grid[1:-1][index], math.nan))
    centre = torch.cat(found, dim=1)
    return golden_section(lambda y: energy(x.unsqueeze(-2), y[..., None, None]).squeeze(-1), centre, spacing)


def golden_section(
    f: Callable[[Tensor], Tensor], centre: Tensor, reach: float, iterations: int = 30
) -> Tensor:
    """The minimum of f, elementwise, between centre - reach and centre + reach."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high = centre - reach, centre + reach
    for _ in range(iterations):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        down_left = f(left) < f(right)
        low, high = torch.where(down_left, low, left), torch.where(down_left, right, high)
    return (low + high) / 2


def energy_surface(
    energy: EnergyNetwork, members: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """x (X,), y (Y,) and E(y|x) (S, X, Y) on a grid around the target."""
    x = torch.linspace(0, 2 * math.pi, 81, dtype=torch.double, device=device)
    y = torch.linspace(-7, 4, 111, dtype=torch.double, device=device)
    shape = (members, len(x), len(y))
    return x, y, energy(x[:, None, None].expand(members, -1, 1, 1), y[:, None].expand(*shape, 1))


def keep(folder: Path, record: dict[str, Any]) -> Iterator[Kept]:
    """Of every seed: its training curve, and its tables of the evaluation at the end."""
    if record["status"] != "finished":
        raise RunError(f"{folder} is {record['status']}; only a finished run has been evaluated")
    log = read_records(folder / LOG)
    for i in range(record["config"]["seeds"]):
        seed = record["seed"] + i
        rows = [map(_short, (row["step"], row["seconds"], row[f"mse_{i}"], row[f"lr_{i}"])) for row in log]
        tables = {
            f"{name}.csv": regular_file(folder, f"seed{seed}_{name}.csv").read_bytes() for name in TABLES
        }
        columns = ["step", "seconds", "mse", "lr"]
        yield Kept(record["experiment"], record["variant"], seed, record, columns, rows, tables)


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
