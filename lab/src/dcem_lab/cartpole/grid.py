"""The cartpole's ablation in one go: every latent dimension × τ × seed, trained side by side as one stack.

    dcem train cartpole-grid                 # τ = 1 and 0.1: 18 decoders
    dcem train cartpole-grid taus=[0]        # τ = 0, which needs no gradient through the search

The members do not influence each other: each has its own initial states, gradient clip, Adam and learning
rate. `export` and `reevaluate` write the tables that the figures are made from.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.scores import score_decoders, write_scores
from dcem_lab.cartpole.train import Member, Training
from dcem_lab.runs import Run, RunError, read_record, read_records, require
from dcem_lab.runs.files import write_bytes, write_csv
from dcem_lab.runs.folder import LOG
from dcem_lab.runs.settings import setting


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """A decoder for every combination of latent dimension, temperature and seed.

    latent_dims: sizes of the latent space.
    taus: temperatures of DCEM, all positive, or 0 alone for vanilla CEM.
    seeds: of the first weights.
    seed: of the random states.
    """

    latent_dims: tuple[int, ...] = setting((2, 8, 16), least=1, some=True)
    taus: tuple[float, ...] = setting((1.0, 0.1), least=0, some=True)
    seeds: tuple[int, ...] = setting((0, 1, 2), least=0, some=True)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        alike = min(self.taus) > 0 or max(self.taus) == 0
        require(alike, "taus", self.taus, "all positive, or 0 alone")

    @property
    def members(self) -> list[Member]:
        return [Member(*one) for one in product(self.latent_dims, self.taus, self.seeds)]


PRESETS: dict[str, dict[str, object]] = {"tiny": {**cartpole.SMALL, "latent_dims": (2, 3), "seeds": (0, 1)}}


def run(config: Config, run: Run) -> None:
    cartpole.train(config.members, config, run)


def export(
    run_folder: Path | str, results: Path | str = "lab/results/cartpole", unfinished: bool = False
) -> list[Path]:
    """A run's log as results/<latent dimension and τ>/seed<k>.csv, one a member, and run.json.

    Only of a finished run, unless `unfinished` says that a part of one is worth keeping: run.json then tells
    how far it came.
    """
    record = read_record(run_folder)
    if record["status"] != "finished":
        if not unfinished:
            raise RunError(f"{run_folder} is {record['status']}; only a finished run can be exported")
        record["note"] = f"{record['status']} at {record['step']:,} of {record['steps']:,} updates"
    rows = read_records(Path(run_folder) / LOG)
    written = []
    for member in members_of(record):
        folder = Path(results) / member.variant
        folder.mkdir(parents=True, exist_ok=True)
        written.append(folder / f"seed{member.seed}.csv")
        _write_table(written[-1], rows, f"{member.name}/")
        records = folder / "run.json"
        merged = json.loads(records.read_bytes()) if records.exists() else {}
        merged[f"seed{member.seed}"] = {**record, "member": asdict(member)}
        write_bytes(records, json.dumps(dict(sorted(merged.items())), indent=1).encode() + b"\n")
    return written


def reevaluate(run_folder: Path | str, results: Path | str = "lab/results/cartpole", draws: int = 8) -> Path:
    """Score a run's best decoders with noise and states that did not choose them; in reevaluation.csv."""
    members = members_of(read_record(run_folder))
    found = score_decoders(Path(run_folder) / "decoders", members, draws)
    return write_scores(Path(results) / "reevaluation.csv", found)


def members_of(record: dict[str, Any]) -> list[Member]:
    """Who was trained in the run of this record."""
    settings = record["config"]
    return [Member(*one) for one in product(settings["latent_dims"], settings["taus"], settings["seeds"])]


def _write_table(path: Path, rows: list[dict[str, float]], prefix: str) -> None:
    columns = [name.removeprefix(prefix) for name in rows[0] if name.startswith(prefix)]
    lines = ([row["step"], row["seconds"], *(row[prefix + name] for name in columns)] for row in rows)
    write_csv(path, ["step", "seconds", *columns], lines)
