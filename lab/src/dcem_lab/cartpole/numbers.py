"""The cartpole study's numbers: results/cartpole as arrays, and the tables that compare with the paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from dcem_lab.paper import CARTPOLE_EXPERT as PAPER_EXPERT
from dcem_lab.paper import CARTPOLE_FACTORS as PAPER_FACTORS
from dcem_lab.paper import CARTPOLE_PCA as PAPER_PCA
from dcem_lab.report.sources import grouped, read_columns, read_json, read_rows, rows_if_any, seeds_of
from dcem_lab.report.statistics import interval

DIMS, TAUS = (2, 8, 16), (1.0, 0.1, 0.0)
EXPERT, STRONG = "expert-100-10-30", "expert-1000-10-10"


@dataclass(frozen=True)
class Variant:
    """One latent dimension and temperature; the first axis of every array is the seed."""

    dim: int
    tau: float
    states: np.ndarray  # (C,), initial states trained on so far
    validation: np.ndarray  # (S, C)
    best: np.ndarray  # (S, C), the lowest so far

    @property
    def name(self) -> str:
        return f"d{self.dim}-tau{self.tau:g}"

    @property
    def factors(self) -> np.ndarray:
        """The best validation costs (S,) over that of the paper's expert."""
        return self.best[:, -1] / PAPER_EXPERT


@dataclass(frozen=True)
class Study:
    """All that results/cartpole holds."""

    variants: dict[tuple[int, float], Variant]
    one_state: dict[tuple[int, float], Variant]  # the same with one state per update, cut short
    scores: dict[tuple[str, str], np.ndarray]  # costs (draws,) by controller and kind of states
    trajectories: dict[str, int]  # sampled for a plan
    pictures: Path

    def again(self, variant: Variant, states: str) -> np.ndarray:
        """Costs (S,) of the best decoders with noise not used to select them."""
        seeds = range(len(variant.best))
        return np.array([self.scores[f"{variant.name}-seed{seed}", states].mean() for seed in seeds])

    def expert(self, name: str = EXPERT, states: str = "validation") -> float:
        return float(self.scores[name, states].mean())


def read(results: Path) -> Study:
    root = results / "cartpole"
    names = ("baselines/seed0/scores.csv", "reevaluation.csv")
    rows = [row for name in names for row in read_rows(root / name)]
    scores = {
        (controller, states): np.array([float(row["cost"]) for row in found])
        for (controller, states), found in grouped(rows, "controller", "states").items()
    }
    return Study(
        variants=_read_variants(root),
        one_state=_read_variants(root, "one-state-"),
        scores=scores,
        trajectories={row["controller"]: int(row["trajectories"]) for row in rows},
        pictures=root / "pictures",
    )


def _read_variants(root: Path, prefix: str = "") -> dict[tuple[int, float], Variant]:
    found = {}
    for dim, tau in product(DIMS, TAUS):
        if seeds := seeds_of(root / f"{prefix}d{dim}-tau{tau:g}"):
            tables = [read_columns(seed / "curve.csv") for seed in seeds]
            states_per_update = read_json(seeds[0] / "run.json")["config"]["states_per_update"]
            found[dim, tau] = Variant(
                dim,
                tau,
                states=tables[0]["step"] * states_per_update,
                validation=np.stack([table["validation_cost"] for table in tables]),
                best=np.stack([table["best_cost"] for table in tables]),
            )
    return found


def closed_loop(results: Path) -> list[dict[str, str]]:
    """The results of replanning after every step; empty if not run."""
    return [
        {
            "controller": row["controller"],
            "trajectories per plan": f"{int(row['trajectories']):,}",
            f"gets up, of {row['states']}": row["get_up"],
            "stays up": row["stay_up"],
            "states like initial ones": f"{float(row['seen']):.0%}",
            "median cost per step": row["median_cost_a_step"],
        }
        for row in rows_if_any(results / "cartpole" / "closed_loop.csv")
    ]


def closed_loop_trainings(results: Path) -> Iterator[dict[str, str]]:
    """Which components a training on closed-loop states needs: a row per variant, with numbers per seed."""
    for path in sorted((results / "cartpole").glob("closed-loop*/closed_loop.csv")):
        config = read_json(path.parent / "seed0" / "run.json")["config"]
        found = read_rows(path)
        yield {
            "states": "of the closed loop" if config["fresh"] < 1 else "first ones alone",
            "decoder sees the state": "yes" if config["conditioned"] else "no",
            "updates": f"{config['updates']:,}",
            f"the pole stays up, of {found[0]['states']}": ", ".join(row["stay_up"] for row in found),
            "median cost per step": ", ".join(row["median_cost_a_step"] for row in found),
        }


def read_surface(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z1 (Z,), z2 (Z,) and the cost (Z, Z)."""
    columns = read_columns(path)
    z1 = columns.pop("z1")
    return z1, np.array(list(columns), float), np.stack(list(columns.values()), axis=-1)


def factors(study: Study) -> Iterator[dict[str, str]]:
    """Improvement factors, one row per latent dimension and temperature: the paper's, ours, and a verdict.

    'ours' is the best validation cost relative to the paper's expert, as in the paper. Then come the same
    decoders with new noise, with new states too (relative to our run of the paper's expert there), and
    relative to the strong expert, which samples ten times the trajectories.
    """
    for key, variant in study.variants.items():
        paper, best = PAPER_FACTORS[key], variant.factors
        noise, fresh = study.again(variant, "validation"), study.again(variant, "fresh")
        row = {
            "latent dimension": str(variant.dim),
            "τ": f"{variant.tau:g}",
            "paper": f"{paper:.3f}",
            "ours": f"{best.mean():.3f}",
            "95% interval": interval(best).bounds(),
            "fresh noise": _with_interval(noise / PAPER_EXPERT),
            "fresh states": _with_interval(fresh / study.expert(EXPERT, "fresh")),
            "against the strong expert": _with_interval(noise / study.expert(STRONG)),
            "verdict": _verdict(best, paper),
        }
        if key in study.one_state:
            other = study.one_state[key]
            row["one state per update"] = f"{other.factors.mean():.3f}"
            row["stopped after"] = f"{int(other.states[-1]):,}"
        yield row


def baselines(study: Study) -> Iterator[dict[str, str]]:
    """The costs of all other controllers on the same states, and the trajectories sampled per plan."""
    pca = f"{PAPER_PCA * PAPER_EXPERT:.2f}"
    groups = {
        f"CEM, N=100, k=10, T=30 (the paper's expert: {PAPER_EXPERT})": [EXPERT],
        "CEM, N=1000, k=10, T=10 (the strong expert)": [STRONG],
        "CEM, N=1000, k=100, T=10": ["expert-1000-100-10"],
        "CEM, N=4000, k=40, T=40 (nearly optimal)": ["expert-4000-40-40"],
        f"PCA of the paper's expert, 200 × 200 grid (the paper's: {pca})": ["pca-2"],
        "PCA of the strong expert, 200 × 200 grid": ["pca-2-strong"],
    }
    for method, dim in product(("cem", "dcem"), DIMS):
        names = [f"autoencoder-{dim}-{method}-seed{seed}" for seed in range(3)]
        groups[f"autoencoder of the strong expert, d={dim}, {method.upper()}"] = names
    for label, names in groups.items():
        if any((name, "validation") not in study.scores for name in names):
            continue
        validation, fresh = (
            np.concatenate([study.scores[name, states] for name in names])
            for states in ("validation", "fresh")
        )
        yield {
            "controller": label,
            "trajectories": f"{study.trajectories[names[0]]:,}",
            "cost": f"{validation.mean():.2f}",
            "lowest and highest draw": f"[{validation.min():.2f}, {validation.max():.2f}]",
            "factor": f"{validation.mean() / PAPER_EXPERT:.3f}",
            "cost on fresh states": f"{fresh.mean():.2f}",
        }


def in_words(study: Study) -> str:
    """What the numbers say about the paper's claims."""
    soft = [v for (_, tau), v in study.variants.items() if tau == 1]
    reached = [v for v in soft if v.factors.mean() >= PAPER_FACTORS[v.dim, v.tau]]
    best = min(soft, key=lambda v: v.best[:, -1].min())
    seed = int(best.best[:, -1].argmin())
    again = study.scores[f"{best.name}-seed{seed}", "validation"]
    strong = study.scores[STRONG, "validation"]
    sampled = study.trajectories[f"{best.name}-seed{seed}"]
    return (
        f"At τ = 1 the mean improvement factor is at least the paper's for {len(reached)} of {len(soft)} "
        f"latent dimensions. The best controller (latent dimension {best.dim}) has a validation cost of "
        f"{best.best[seed, -1]:.2f}. That is the lowest of many validations; with new noise its cost is "
        f"{again.mean():.2f} [{again.min():.2f}, {again.max():.2f}], with {sampled:,} trajectories per plan. "
        f"The strong expert has {strong.mean():.2f} [{strong.min():.2f}, {strong.max():.2f}] with "
        f"{study.trajectories[STRONG]:,}."
    )


def _verdict(ours: np.ndarray, paper: float) -> str:
    side = "above" if ours.mean() >= paper else "below"
    return f"{side}, {'within' if interval(ours).holds(paper) else 'beyond'} the interval"


def _with_interval(samples: np.ndarray) -> str:
    return f"{samples.mean():.3f} {interval(samples).bounds()}"
