"""The cartpole's ablation in one run: every latent dimension × τ × seed, trained in parallel as one stack.

    dcem train cartpole-grid                 # τ = 1 and 0.1: 18 decoders
    dcem train cartpole-grid taus=[0]        # τ = 0, which needs no gradient through the search
    dcem train cartpole-grid preset=closed-loop

The members do not influence each other: each has its own initial states, gradient clip, Adam and learning
rate. `dcem export` and `reevaluate` write the tables that the figures are made from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dcem import MPC
from dcem_lab.cartpole import closed_loop
from dcem_lab.cartpole.scores import load_decoder, plan_scores, write_scores
from dcem_lab.cartpole.shipped import with_the_papers_search
from dcem_lab.cartpole.train import CLOSED_LOOP, SMALL, Training, members_of, run
from dcem_lab.runs import Kept, read_record, read_records, require
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.settings import setting

__all__ = ["PRESETS", "Config", "run"]


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """Train a decoder for every combination of latent dimension, temperature and seed.

    latent_dims: sizes of the latent space.
    taus: temperatures of DCEM, all positive, or only 0 for plain CEM.
    seeds: seeds of the initial weights.
    seed: seed of the random states.
    """

    latent_dims: tuple[int, ...] = setting((2, 8, 16), least=1, some=True)
    taus: tuple[float, ...] = setting((1.0, 0.1), least=0, some=True)
    seeds: tuple[int, ...] = setting((0, 1, 2), least=0, some=True)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        alike = min(self.taus) > 0 or max(self.taus) == 0
        require(alike, "taus", self.taus, "all positive, or 0 alone")


PRESETS: dict[str, dict[str, object]] = {
    "tiny": {**SMALL, "latent_dims": (2, 3), "seeds": (0, 1)},
    "closed-loop": {"latent_dims": (4,), "taus": (1.0,), **CLOSED_LOOP},
}


def keep(folder: Path, record: dict[str, Any]) -> Iterator[Kept]:
    """For every member, its own metrics from the log, up to the current step of the run."""
    log = read_records(folder / LOG)
    for member in members_of(record["config"]):
        prefix = f"{member.name}/"
        names = [name for name in (log[0] if log else ()) if name.startswith(prefix)]
        yield Kept(
            "cartpole",
            member.variant,
            member.seed,
            {**record, "member": asdict(member)},
            ["step", "seconds", *(name.removeprefix(prefix) for name in names)],
            [[row[name] for name in ("step", "seconds", *names)] for row in log],
        )


def reevaluate(run_folder: Path | str, results: Path | str = "lab/results/cartpole", draws: int = 8) -> Path:
    """Score a run's best decoders with noise and states not used to select them; in reevaluation.csv."""
    best = best_controllers(run_folder)
    found = (score for name, mpc in best.items() for score in plan_scores(name, mpc, draws))
    return write_scores(Path(results) / "reevaluation.csv", found)


def drive(run_folder: Path | str, results: Path | str) -> Path:
    """The closed loops of a run's best decoders, from the shared test states; in closed_loop.csv."""
    return closed_loop.write(results, best_controllers(run_folder))


def best_controllers(run_folder: Path | str) -> dict[str, MPC]:
    """Of every member of a run."""
    folder, members = Path(run_folder) / "decoders", members_of(read_record(run_folder)["config"])
    return {m.name: with_the_papers_search(load_decoder(f"{m.name}-best", folder), m.tau) for m in members}
