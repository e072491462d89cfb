"""The cartpole study's figures, from results/cartpole alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab.cartpole import numbers
from dcem_lab.cartpole.numbers import DIMS, EXPERT, STRONG, TAUS, Study
from dcem_lab.paper import CARTPOLE_EXPERT as PAPER_EXPERT
from dcem_lab.paper import CARTPOLE_FACTORS as PAPER_FACTORS
from dcem_lab.paper import CARTPOLE_PCA as PAPER_PCA
from dcem_lab.report.style import COLORS, WIDTH, interval, save, style

TAU_COLORS = dict(zip(TAUS, COLORS, strict=False))
HEIGHT_SHOWN = 45.0  # costs reach far up where the cart runs away; of interest is what lies near the bottom
_SHOWN_ITERATIONS = (1, 2, 4, 7, 10)
_SPACES = {"tau1": "τ = 1", "tau0.1": "τ = 0.1", "tau0": "τ = 0", "pca": "PCA of expert plans"}


def report(results: Path | str = "lab/results", out: Path | str = "out/report") -> list[Path]:
    """Draw every figure and write the tables, as PNG, SVG, CSV and Markdown; returns the paths."""
    study = numbers.read(results)
    with style() as plt:
        paths = save(draw_samples(plt, study), out, "cartpole_samples")
        paths += save(draw_convergence(plt, study), out, "cartpole_convergence")
        paths += save(draw_factors(plt, study), out, "cartpole_factors")
        paths += save(draw_surfaces(plt, study), out, "cartpole_surfaces")
    return paths + numbers.write_tables(study, Path(out))


def draw_samples(plt: Any, study: Study) -> Any:
    """Iteration by iteration, from one state: forces that CEM and embedded DCEM try, and z on the surface."""
    figure, axes = plt.subplots(3, len(_SHOWN_ITERATIONS), figsize=(WIDTH, 5.0), sharey="row", sharex="row")
    z1, z2, cost = read_surface(study.pictures / "surface_tau1_0.csv")
    for row, method in enumerate(("cem", "dcem")):
        table = read_samples(study.pictures / f"{method}_samples.csv")
        for ax, iteration in zip(axes[row], _SHOWN_ITERATIONS, strict=True):
            now = table["iteration"] == iteration
            samples, mean = now & ~table["is_mean"], now & table["is_mean"]
            steps = np.arange(table["u"].shape[1])
            ax.plot(steps, table["u"][samples].T, color=COLORS[row], alpha=0.25, linewidth=0.6)
            ax.plot(steps, table["u"][mean].T, color="black", linewidth=1.2)
            sampled, value = int(table["sampled"][mean][0]), table["cost"][mean][0]
            ax.set_title(f"iteration {iteration}\n{sampled:,} sampled\ncost {value:.1f}", fontsize=7)
            ax.set(ylim=(-105, 105))
    for ax, iteration in zip(axes[2], _SHOWN_ITERATIONS, strict=True):
        _contours(ax, z1, z2, cost)
        samples = (table["iteration"] == iteration) & ~table["is_mean"]
        ax.scatter(*table["z"][samples].T, s=4, color="white", edgecolors="black", linewidths=0.4)
        ax.set(xlim=(-1.03, 1.03), ylim=(-1.03, 1.03), xlabel="$z_1$")
        ax.grid(False)
    axes[0, 0].set_ylabel("CEM\nforce")
    axes[1, 0].set_ylabel("embedded DCEM\nforce")
    axes[2, 0].set_ylabel("latent space\n$z_2$")
    for ax in axes[1]:
        ax.set_xlabel("step")
    return figure


def draw_convergence(plt: Any, study: Study) -> Any:
    """Costs while training (above) and on the validation states (below), with both experts' lines."""
    figure, axes = plt.subplots(2, len(DIMS), figsize=(WIDTH, 4.4), sharex=True, sharey=True)
    for column, dim in enumerate(DIMS):
        for tau in TAUS:
            variant = study.variants.get((dim, tau))
            if variant is None:
                continue
            for ax, curve in ((axes[0, column], variant.train), (axes[1, column], variant.validation)):
                x, smooth = smoothed(variant.states, curve)
                mean, low, high = smooth.mean(0), smooth.min(0), smooth.max(0)
                ax.plot(x, mean, color=TAU_COLORS[tau], label=f"τ = {tau:g}")
                ax.fill_between(x, low, high, color=TAU_COLORS[tau], alpha=0.18, linewidth=0)
        for ax in axes[:, column]:
            _expert_line(ax, study, EXPERT, "paper's expert", "--")
            _expert_line(ax, study, STRONG, "strong expert", ":")
            ax.set(ylim=(-11.8, 8), xticks=(0, 50_000, 100_000), xticklabels=("0", "50k", "100k"))
        axes[0, column].set_title(f"latent dimension {dim}")
        axes[1, column].set_xlabel("initial states trained on")
    axes[0, 0].set_ylabel("training cost")
    axes[1, 0].set_ylabel("validation cost")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=len(labels))
    return figure


def _expert_line(ax: Any, study: Study, name: str, label: str, dashes: str) -> None:
    costs = study.scores[name, "validation"]
    ax.axhline(costs.mean(), color="black", linestyle=dashes, linewidth=1, label=label)
    ax.axhspan(costs.min(), costs.max(), color="black", alpha=0.08, linewidth=0)


def draw_factors(plt: Any, study: Study) -> Any:
    """Improvement factors with 95% intervals: over the paper's expert and over the strong one."""
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.4), width_ratios=(1.4, 1))
    left, right = axes
    ticks = []
    for i, (dim, tau) in enumerate((dim, tau) for dim in DIMS for tau in TAUS):
        ticks.append(f"{dim}\nτ={tau:g}")
        variant = study.variants.get((dim, tau))
        if variant is None:
            continue
        best, again = variant.best[:, -1], study.again(variant, "validation")
        first = i == 0
        left.plot(
            i - 0.25, PAPER_FACTORS[dim, tau], "D", color="black", markersize=4, label=_once("paper", first)
        )
        _point(left, i, best / PAPER_EXPERT, "o", TAU_COLORS[tau], _once("ours, best validation", first))
        _point(left, i + 0.25, again / PAPER_EXPERT, "s", TAU_COLORS[tau], _once("ours, fresh noise", first))
        _point(
            right, i, again / study.expert(STRONG), "s", TAU_COLORS[tau], _once("ours, fresh noise", first)
        )
    pca = study.scores["pca-2", "validation"].mean()
    left.axhline(1, color="black", linewidth=0.8)
    left.axhline(PAPER_PCA, color="0.5", linestyle="--", linewidth=1, label="PCA, the paper's")
    left.axhline(pca / PAPER_EXPERT, color="0.5", linestyle=":", linewidth=1, label="PCA, ours")
    right.axhline(1, color="black", linewidth=0.8)
    right.axhline(
        study.expert() / study.expert(STRONG),
        color="0.5",
        linestyle="--",
        linewidth=1,
        label="paper's expert",
    )
    for ax, title in ((left, "over the paper's expert"), (right, "over the strong expert")):
        ax.set_xticks(range(len(ticks)), ticks, fontsize=6.5)
        ax.set(title=title, xlabel="latent dimension", ylim=(-0.05, 1.55))
        ax.legend(fontsize=6.5, loc="lower left")
    left.set_ylabel("improvement factor")
    return figure


def draw_surfaces(plt: Any, study: Study) -> Any:
    """C(z) of two-dimensional latent spaces: columns from the same states, lighter is lower."""
    spaces = [name for name in _SPACES if (study.pictures / f"surface_{name}_0.csv").exists()]
    starts = len(list(study.pictures.glob("surface_tau1_*.csv")))
    figure, axes = plt.subplots(
        starts, len(spaces), figsize=(WIDTH, 1.75 * starts + 0.3), sharex=True, sharey=True, squeeze=False
    )
    for i in range(starts):
        surfaces = [read_surface(study.pictures / f"surface_{name}_{i}.csv") for name in spaces]
        low = min(cost.min() for _, _, cost in surfaces)
        for ax, name, (z1, z2, cost) in zip(axes[i], spaces, surfaces, strict=True):
            _contours(ax, z1, z2, cost, low)
            a, b = np.unravel_index(cost.argmin(), cost.shape)
            ax.plot(z1[a], z2[b], "*", color="#D55E00", markersize=9, markeredgecolor="white")
            ax.text(-0.95, -0.95, f"lowest {cost.min():.1f}", fontsize=7, color="white", weight="bold",
                    bbox={"facecolor": "black", "alpha": 0.5, "pad": 1.5, "linewidth": 0})  # fmt: skip
            ax.grid(False)
            if i == 0:
                ax.set_title(_SPACES[name])
            if i == starts - 1:
                ax.set_xlabel("$z_1$")
        axes[i, 0].set_ylabel(f"state {i + 1}\n$z_2$")
    return figure


def _contours(ax: Any, z1: np.ndarray, z2: np.ndarray, cost: np.ndarray, low: float | None = None) -> None:
    low = cost.min() if low is None else low
    levels = low + np.linspace(0, np.sqrt(HEIGHT_SHOWN), 16) ** 2
    ax.contourf(z1, z2, np.minimum(cost.T, levels[-1]), levels=levels, cmap="Blues")


def _point(ax: Any, x: float, samples: np.ndarray, marker: str, color: str, label: str | None) -> None:
    mean, low, high = interval(samples)
    ax.errorbar(x, mean, [[mean - low], [high - mean]], fmt=marker, color=color, markersize=4, capsize=2,
                elinewidth=1, label=label)  # fmt: skip
    ax.plot([x] * len(samples), samples, "_", color=color, markersize=5, alpha=0.6)


def _once(label: str, first: bool) -> str | None:
    return label if first else None


def smoothed(x: np.ndarray, curve: np.ndarray, parts: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Means over stretches: single measurements are too noisy to see the trend."""
    size = max(1, len(x) // parts)
    whole = len(x) // size * size
    return x[:whole].reshape(-1, size).mean(-1), curve[:, :whole].reshape(len(curve), -1, size).mean(-1)


def read_surface(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z1 (Z,), z2 (Z,) and the cost (Z, Z)."""
    names, *rows = csv.reader(path.read_text().splitlines())
    values = np.array(rows, float)
    return values[:, 0], np.array(names[1:], float), values[:, 1:]


def read_samples(path: Path) -> dict[str, np.ndarray]:
    """Columns of a search's samples; z (R, d) and u (R, H) are one array each."""
    names, *rows = csv.reader(path.read_text().splitlines())
    columns = dict(zip(names, np.array(rows).T, strict=True))
    return {
        "iteration": columns["iteration"].astype(int),
        "is_mean": columns["kind"] == "mean",
        "cost": columns["cost"].astype(float),
        "sampled": columns["sampled"].astype(int),
        "z": np.array([columns[name] for name in names if name[0] == "z"], float).T,
        "u": np.array([columns[name] for name in names if name[0] == "u"], float).T,
    }
