"""Tables inside the README and the documentation, rebuilt from the files of results.

A page has pairs of comments, ``<!-- table NAME: begin -->`` and ``<!-- table NAME: end -->``; what is
between them is written by ``python -m dcem.report.documents``, and a test holds it against the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dcem.report import cartpole_numbers, headline, paper, regression
from dcem.report.headline import NOT_MEASURED
from dcem.report.page import dmc_questions, dmc_starts
from dcem.report.page.dmc_numbers import (
    CONTROLLERS,
    planning_rows,
    read_evaluations,
    read_trainings,
    training_rows,
)
from dcem.report.page.sources import duration, read_rows
from dcem.report.page.speed import loop_rows

Rows = Sequence[dict[str, str]]

_BLOCK = re.compile(r"(<!-- table ([\w-]+): begin -->\n).*?(<!-- table \2: end -->)", re.DOTALL)


def rewritten(text: str, root: Path) -> str:
    """A page with its tables as the results below `root` have them."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            raise ValueError(f"a table must be one of {', '.join(TABLES)}, got {name!r}")
        return f"{match[1]}\n{markdown(TABLES[name](root))}\n\n{match[3]}"

    return _BLOCK.sub(block, text)


def pages(root: Path) -> list[Path]:
    """Where tables may be."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def markdown(rows: Rows) -> str:
    """
    >>> print(markdown([{"": "mass", "ours": "1.0"}]))
    |  | ours |
    | --- | --- |
    | mass | 1.0 |
    """
    if not rows:
        return f"*{NOT_MEASURED.capitalize()}.*"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# The control suite


def _curves(root: Path) -> Rows:
    """Phase 1, evaluation by evaluation."""
    return [
        {
            "task": training.task,
            "variant, seed": f"{training.preset}, {seed.removeprefix('seed')}",
            "environment steps": f"{curve['env_steps'][i]:,.0f}",
            "updates": f"{curve['updates'][i]:,.0f}",
            "wall time": duration(float(curve["seconds"][i])),
            "mean": f"{curve['eval_mean'][i]:.0f}",
            "median": f"{curve['eval_median'][i]:.0f}",
        }
        for training in read_trainings(root / "results" / "planet")
        for seed, curve in zip(training.records, training.curves, strict=True)
        for i in np.flatnonzero(np.isfinite(curve["eval_median"]))
    ]


def _evaluations(root: Path) -> Rows:
    """The three controllers on both tasks, beside the paper's; others below."""
    found = {
        (e.task, e.controller): e for e in read_evaluations(root / "results" / "dmc" / "evaluations.csv")
    }
    rows = []
    for key in [*paper.DMC_RETURNS, *(key for key in found if key not in paper.DMC_RETURNS)]:
        one, known = found.get(key), paper.DMC_RETURNS.get(key)
        q1, median, q3 = np.percentile(one.totals, [25, 50, 75]) if one else (0.0, 0.0, 0.0)
        rows.append(
            {
                "task": key[0],
                "controller": CONTROLLERS.get(key[1], key[1]).replace("\n", " "),
                "the paper": f"{known.median:.0f} [{known.q1:.0f}–{known.q3:.0f}]" if known else "",
                "ours": f"{median:.0f} [{q1:.0f}–{q3:.0f}]" if one else NOT_MEASURED,
                "our mean": f"{np.mean(one.totals):.0f}" if one else "",
                "episodes": str(len(one.totals)) if one else "",
                "trajectories a plan": one.sampled if one else "",
            }
        )
    return rows


# Choosing settings


def _regression(root: Path) -> Rows:
    rows = []
    for variant in regression.read_variants(root / "results"):
        if variant.config["method"] == "dcem":
            errors, config = variant.error_at(variant.config["n_iters"]), variant.config
            rows.append(
                {
                    "τ": f"{config['tau']:g}",
                    "T": str(config["n_iters"]),
                    "error, seed by seed": ", ".join(f"{error:.1e}" for error in errors),
                    f"after {variant.errors.shape[1]} iterations, times that": ", ".join(
                        f"{factor:.1f}" for factor in variant.growth
                    ),
                    "predictions at a minimum": f"{variant.at_minimum.mean():.0%}",
                }
            )
    return rows


def _cartpole(root: Path) -> Rows:
    columns = ("latent dimension", "τ", "paper", "ours", "95% interval", "fresh states", "verdict")
    return [
        {name: row[name] for name in columns}
        for row in cartpole_numbers.factors(cartpole_numbers.read(root / "results"))
    ]


def _cem(root: Path) -> Rows:
    columns = ("controller", "trajectories", "cost", "lowest and highest draw")
    rows = cartpole_numbers.baselines(cartpole_numbers.read(root / "results"))
    return [{name: row[name] for name in columns} for row in rows if row["controller"].startswith("CEM")]


def _spaces(root: Path) -> Rows:
    """Latent spaces that were learned in other ways."""
    columns = ("controller", "trajectories", "cost", "cost on fresh states")
    rows = cartpole_numbers.baselines(cartpole_numbers.read(root / "results"))
    return [{name: row[name] for name in columns} for row in rows if not row["controller"].startswith("CEM")]


def _closed_loop(root: Path) -> Rows:
    return [
        {
            "controller": row["controller"],
            f"stays up, of {row['states']}": row["stay_up"],
            "median cost a step": row["median_cost_a_step"],
        }
        for row in read_rows(root / "results" / "cartpole" / "closed_loop.csv")
    ]


def _backward(root: Path) -> Rows:
    folder = root / "benchmarks" / "results" / "cpu"
    warm, cold = (
        {row["contender"]: row for row in read_rows(folder / f"{name}.csv")}
        for name in ("backward", "backward_cold")
    )
    return [
        {
            "mode": f"`{name}`",
            "time": f"{float(row['forward+backward ratio']):.2f}" if row["forward+backward ratio"] else "",
            "tensors, MB": f"{float(row['tensors MB']):.0f}",
            "error of the gradient, τ = 1": _error(row),
            "τ = 0.1": _error(cold[name]),
        }
        for name, row in warm.items()
    ]


def _gpu_targets(root: Path) -> Rows:
    path = root / "benchmarks" / "gpu" / "results" / "targets.csv"
    return read_rows(path) if path.exists() else []


def _differentiation(root: Path) -> Rows:
    """Time and memory of the gradient of plans."""
    return [
        {
            "plans over": "latent space" if row["space"] == "latent" else "action sequences",
            "trained": row["parts"].replace("+", ", "),
            "backward": f"`{row['backward']}`",
            "model in": row["dtype"],
            "time": _unit(row["ms"], "ms"),
            "memory": _unit(row["MB"], "MB"),
            "device": row["device"],
        }
        for row in read_rows(root / "benchmarks" / "gpu" / "results" / "differentiation.csv")
    ]


def _unit(value: str, unit: str) -> str:
    try:
        return f"{float(value):,.0f} {unit}"
    except ValueError:
        return value  # it ran out of memory


def _error(row: dict[str, str]) -> str:
    return f"{float(row['relative error']):.2f}" if row["relative error"] else "no gradient of x̂"


TABLES: dict[str, Callable[[Path], Rows]] = {
    "headline": lambda root: headline.rows(root / "results", root / "benchmarks"),
    "planet": lambda root: training_rows(read_trainings(root / "results" / "planet")),
    "embed": lambda root: training_rows(read_trainings(root / "results" / "embed")),
    "ppo": lambda root: training_rows(read_trainings(root / "results" / "ppo")),
    "planet-curves": _curves,
    "planet-questions": lambda root: dmc_questions.planet_rows(root / "results"),
    "embed-questions": lambda root: dmc_questions.embed_rows(root / "results"),
    "ppo-questions": lambda root: dmc_questions.ppo_rows(root / "results"),
    "starts": lambda root: dmc_starts.start_rows(root / "results"),
    "finetuned": lambda root: dmc_questions.finetuned_rows(root / "results"),
    "loop": lambda root: loop_rows(root / "benchmarks"),
    "evaluations": _evaluations,
    "planning": lambda root: planning_rows(root / "results" / "dmc"),
    "regression": _regression,
    "cartpole": _cartpole,
    "cem": _cem,
    "spaces": _spaces,
    "closed-loop": _closed_loop,
    "backward": _backward,
    "gpu-targets": _gpu_targets,
    "differentiation": _differentiation,
}


if __name__ == "__main__":
    for page in pages(Path()):
        before = page.read_text()
        after = rewritten(before, Path())
        if after != before:
            page.write_text(after)
            print(f"renewed {page}")
