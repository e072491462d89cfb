"""The regression study's numbers: results/regression as arrays, the table and the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab.paper import REGRESSION_MSE, REGRESSION_UPDATES
from dcem_lab.report.sources import read_columns, read_json, seeds_of

# How each variant is called; the order is that of the page, and of its colours.
LABELS = {
    "dcem": "DCEM",
    "gd": "unrolled gradient descent",
    "gd-starts": "gradient descent, 10 starts",
    "gd-steps": "gradient descent, 5–15 random steps",
    "dcem-T3": "DCEM, T = 3",
    "dcem-T5": "DCEM, T = 5",
    "dcem-tau0.1": "DCEM, τ = 0.1",
    "dcem-every-100": "DCEM, progress checked every 100 updates",
    "dcem-60k": "DCEM, learning rate 0 at 60,000",
    "quick": "DCEM, quick",
    "quick,method=gd": "unrolled gradient descent, quick",
}
PAPER = ("dcem", "gd")  # the two that the paper shows
FIXES = ("gd-starts", "gd-steps")  # of gradient descent
BESIDE_PAPER = {"dcem": "dcem", "dcem-60k": "dcem", "gd": "gd"}  # which of them a variant is compared with
PAPER_MSE = {
    name: f"≈ {REGRESSION_MSE[papers]:.0e}".replace("e-0", "e-") for name, papers in BESIDE_PAPER.items()
}
WINDOW = 1000  # updates around the paper's that a training error is averaged over
NEAR = 0.05  # a prediction this close to a local minimum is at it


@dataclass(frozen=True)
class Variant:
    """What the results say about one variant; the first axis of every array is the seed."""

    name: str
    config: dict[str, Any]
    steps: np.ndarray  # (C,), updates at which the training error was measured
    curve: np.ndarray  # (S, C), training error
    errors: np.ndarray  # (S, I), error after 1, ..., I iterations at test time
    x: np.ndarray  # (P,)
    target: np.ndarray  # (P,)
    predictions: np.ndarray  # (S, I, P)
    gaps: np.ndarray  # (S, P), from the prediction to the nearest local minimum; NaN where there is none
    surface: np.ndarray  # (S, Y, X)

    @property
    def label(self) -> str:
        return LABELS.get(self.name, self.name)

    def error_at(self, iterations: int) -> np.ndarray:
        """(S,)"""
        return self.errors[:, iterations - 1]

    @property
    def trained_error(self) -> np.ndarray:
        """The error after as many iterations as in training, (S,)."""
        return self.error_at(self.config["n_iters"])

    def trained_for(self, updates: int = REGRESSION_UPDATES) -> np.ndarray:
        """The training error (S,) around this many updates, or the last; averaged, since it is noisy."""
        near = np.abs(self.steps - updates) <= WINDOW
        if not near.any():
            near = self.steps == self.steps[-1]
        return np.exp(np.log(self.curve[:, near]).mean(1))

    @property
    def growth(self) -> np.ndarray:
        """The error after the most iterations relative to the error in training, (S,)."""
        return self.errors[:, -1] / self.trained_error

    @property
    def at_minimum(self) -> np.ndarray:
        """The share of x whose prediction is at a local minimum, (S,)."""
        return (self.gaps <= NEAR).mean(-1)


def read_variant(folder: Path) -> Variant:
    """results/regression/<variant>/seed<k>/*.csv"""
    seeds = seeds_of(folder)

    def table(name: str) -> np.ndarray:
        """(S, rows, columns)"""
        read = (read_columns(seed / f"{name}.csv") for seed in seeds)
        return np.stack([np.stack(list(one.values()), axis=-1) for one in read])

    curve, minima, predictions = map(table, ("curve", "minima", "predictions"))
    return Variant(
        name=folder.name,
        config=read_json(seeds[0] / "run.json")["config"],
        steps=curve[0, :, 0],
        curve=curve[:, :, 2],
        errors=table("iterations")[:, :, 1],
        x=predictions[0, :, 0],
        target=predictions[0, :, 1],
        predictions=predictions[:, :, 2:].swapaxes(1, 2),
        gaps=np.abs(minima[:, :, 2] - minima[:, :, 3]),
        surface=table("energy")[:, :, 1:],
    )


def read_variants(results: Path) -> list[Variant]:
    """All variants under results/regression, those of the study first and in its order."""
    root = results / "regression"
    folders = [folder for folder in sorted(root.glob("*")) if seeds_of(folder)]
    if not folders:
        raise FileNotFoundError(f"{root} must have results such as dcem/seed0/curve.csv, found none")
    return sorted(map(read_variant, folders), key=lambda variant: place(variant.name))


def place(name: str) -> int:
    """Of a variant on the page; the last for one that is not part of the study."""
    return [*LABELS, name].index(name)


def shaded(surface: np.ndarray) -> np.ndarray:
    """An energy surface (Y, X), normalised for every x, on a log scale."""
    low, high = surface.min(0), surface.max(0)
    return np.log10(1e-3 + (surface - low) / np.maximum(high - low, 1e-12))


def table(variants: Sequence[Variant]) -> Iterator[dict[str, str]]:
    """One row per variant: the mean over the seeds, and the worst and best in brackets."""
    for variant in variants:
        at_10, last = variant.error_at(min(10, variant.errors.shape[1])), variant.errors[:, -1]
        reached = variant.steps[-1] >= REGRESSION_UPDATES
        there = _spread(variant.trained_for(), "{:.1e}") if reached else "not reached"
        yield {
            "variant": variant.label,
            "seeds": str(len(variant.curve)),
            f"training MSE at {REGRESSION_UPDATES:,} updates": there,
            "the paper's there": PAPER_MSE.get(variant.name, "not reported"),
            "updates": f"{int(variant.steps[-1]):,}",
            "MSE": _spread(variant.trained_error, "{:.1e}"),
            "MSE at 10": _spread(at_10, "{:.1e}"),
            f"MSE at {variant.errors.shape[1]}": _spread(last, "{:.1e}"),
            "ratio": _spread(last / at_10, "{:.3g}"),
            f"within {NEAR} of a minimum": _spread(variant.at_minimum, "{:.0%}"),
        }


def sentences(variants: Sequence[Variant]) -> Iterator[str]:
    """What the numbers say about the paper's claims: DCEM stays at a minimum, gradient descent walks past."""
    found = {variant.name: variant for variant in variants}
    if not all(name in found for name in PAPER):
        yield "The comparison needs the results of both dcem and gd."
        return
    dcem, gd = (found[name] for name in PAPER)
    yield (
        f"Gradient descent leaves its prediction when it takes more steps than in training: "
        f"{_verdict(gd.growth.min() > 10)}. At {gd.errors.shape[1]} iterations its error is "
        f"{_factor(gd.growth)} that at {gd.config['n_iters']}."
    )
    yield (
        f"DCEM stays at its prediction: {_verdict(dcem.growth.max() <= 2)}. Its error is "
        f"{_factor(dcem.growth)} that at {dcem.config['n_iters']} iterations; at most 2 times in every seed "
        "counts as staying."
    )
    minima = dcem.at_minimum.min() > gd.at_minimum.max() and dcem.at_minimum.mean() > 0.5
    yield (
        f"DCEM predicts local minima of the learned surface, and gradient descent does not: "
        f"{_verdict(minima)}. {dcem.at_minimum.mean():.0%} and {gd.at_minimum.mean():.0%} of the predictions "
        f"lie within {NEAR} of one."
    )
    for variant in (found[name] for name in FIXES if name in found):
        fixed = variant.growth.max() <= 2 and variant.at_minimum.min() > 0.5
        yield (
            f"{variant.label}: {'also stays' if fixed else 'does not stay'} at minima (its error is "
            f"{_factor(variant.growth)} that in training, {variant.at_minimum.mean():.0%} of the "
            "predictions are minima)."
        )


def _verdict(holds: bool) -> str:
    return "supported" if holds else "contradicted"


def _factor(growth: np.ndarray) -> str:
    return f"{growth.min():.2g} to {growth.max():.2g} times"


def _spread(values: np.ndarray, form: str) -> str:
    """'mean [lowest, highest]'."""
    return f"{form.format(values.mean())} [{form.format(values.min())}, {form.format(values.max())}]"
