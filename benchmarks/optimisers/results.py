"""Rows of runs, and what is made of them: the summary, the curves and their picture."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, variance
from typing import Any

from scoring import GROUPS, curve, group_of, share

Row = dict[str, Any]
Case = tuple[int, int]  # dimension, and evaluations per dimension

COLUMNS = (
    "optimiser", "function", "dimension", "instance", "draw", "budget", "evaluations", "share", "distance",
    "seconds", "error", "reached",
)  # fmt: skip
KEY = ("optimiser", "function", "dimension", "instance", "draw", "budget")
PAIR = ("cmaes", "pycma CMA-ES")  # the same algorithm, whose shares are compared
MANY = ("problem", "optimiser", "solved", "seconds", "seconds for all", "median", "worst", "error")


def put(
    path: Path, rows: Iterable[Row], columns: Sequence[str] = COLUMNS, key: Sequence[str] = KEY
) -> list[Row]:
    """Write rows into a table, in place of those of the same key; returns the whole table."""
    table = {tuple(str(row[name]) for name in key): row for row in [*read(path), *rows]}
    write(path, columns, table.values())
    return read(path)


def read(path: Path) -> list[Row]:
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def reached(row: Row) -> list[int]:
    """At how many evaluations each target was reached, from the easiest on."""
    return [int(count) for count in row["reached"].split()]


def cases(rows: Iterable[Row]) -> dict[Case, list[Row]]:
    """The rows of every dimension and budget."""
    found: dict[Case, list[Row]] = {}
    for row in rows:
        found.setdefault((int(row["dimension"]), int(row["budget"])), []).append(row)
    return dict(sorted(found.items()))


def by_optimiser(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["optimiser"], []).append(row)
    return found


def in_group(rows: Iterable[Row], group: str) -> list[Row]:
    """Of all functions, or of those of a group."""
    return [row for row in rows if group == "all" or group_of(int(row["function"])) == group]


def by_function(rows: Iterable[Row]) -> list[list[list[int]]]:
    """What the runs of every function reached: a function counts once, however many instances it has."""
    found: dict[str, list[list[int]]] = {}
    for row in rows:
        found.setdefault(row["function"], []).append(reached(row))
    return list(found.values())


def summary(rows: Sequence[Row]) -> list[Row]:
    """The mean share of targets of every optimiser, in all and by group; a run that failed counts 0."""
    table = []
    for (dimension, budget), runs in cases(rows).items():
        for optimiser, own in by_optimiser(runs).items():
            shares = {
                group: f"{mean(mean(map(share, runs)) for runs in part):.3f}" if part else ""
                for group in ("all", *GROUPS)
                for part in [by_function(in_group(own, group))]
            }
            table.append(
                {"optimiser": optimiser, "dimension": dimension, "budget": budget}
                | {f"{name}s": _range(map(len, _distinct(own, name))) for name in ("instance", "draw")}
                | shares
                | {"seconds a run": f"{mean(float(row['seconds'] or 0) for row in own):.2f}"}
                | {"failed": sum(bool(row["error"]) for row in own)}
            )
    return table


def _distinct(rows: Iterable[Row], name: str) -> Iterable[set[str]]:
    """The values of a column, by function."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["function"], set()).add(row[name])
    return found.values()


def ratios(rows: Sequence[Row], pair: tuple[str, str] = PAIR) -> list[Row]:
    """How the mean shares of a pair compare: their ratio, with its 95% interval over runs.

    A mean over functions of means over m runs has the variance of Σ var / m over their number squared. The
    logarithm of the ratio adds those of both, relative to their means.
    """
    table = []
    for (dimension, budget), runs in cases(rows).items():
        own = by_optimiser(runs)
        for group in ("all", *GROUPS):
            parts = [by_function(in_group(own.get(name, []), group)) for name in pair]
            if not all(parts) or any(len(runs) < 2 for part in parts for runs in part):
                continue
            a, b = (mean(mean(map(share, runs)) for runs in part) for part in parts)
            spread = [
                sum(variance(map(share, runs)) / len(runs) for runs in part) / len(part) ** 2
                for part in parts
            ]
            ratio = a / b
            factor = math.exp(1.96 * math.sqrt(spread[0] / a**2 + spread[1] / b**2))
            counts = [_range(len(runs) for runs in part) for part in parts]
            table.append(
                {"dimension": dimension, "budget": budget, "group": group}
                | {pair[0]: f"{a:.3f}", pair[1]: f"{b:.3f}", "runs a function": " and ".join(counts)}
                | {"ratio": f"{ratio:.2f}", "low": f"{ratio / factor:.2f}", "high": f"{ratio * factor:.2f}"}
            )
    return table


def _range(counts: Iterable[int]) -> str:
    least, *_, most = sorted([*counts] * 2)
    return str(least) if least == most else f"{least}-{most}"


def curves(rows: Sequence[Row], points: int = 61) -> list[Row]:
    """The share of targets reached, against evaluations per dimension, by group."""
    table = []
    for (dimension, budget), runs in cases(rows).items():
        grid = [budget ** (i / (points - 1)) for i in range(points)]  # from 1 on, even on a log scale
        for optimiser, own in by_optimiser(runs).items():
            for group in ("all", *GROUPS):
                budgets = [x * dimension for x in grid]
                part = [curve(runs, budgets) for runs in by_function(in_group(own, group))]
                shares = [mean(values) for values in zip(*part, strict=True)]
                table += [
                    {"dimension": dimension, "budget": budget, "group": group, "optimiser": optimiser}
                    | {"evaluations per dimension": f"{x:.4g}", "share": f"{y:.4f}"}
                    for x, y in zip(grid, shares, strict=False)
                ]
    return table


def draw(table: Sequence[Row], folder: Path) -> None:
    """One SVG a dimension and budget, a panel a group."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dcem"  # the same curves make the same file
    from matplotlib import pyplot

    for (dimension, budget), rows in cases(table).items():
        figure, axes = pyplot.subplots(2, 3, figsize=(12, 7), sharex=True, sharey=True, layout="constrained")
        for axis, group in zip(axes.flat, ("all", *GROUPS), strict=True):
            for optimiser, own in by_optimiser(row for row in rows if row["group"] == group).items():
                x = [float(row["evaluations per dimension"]) for row in own]
                axis.plot(x, [float(row["share"]) for row in own], label=optimiser)
            axis.set(title=group, xscale="log", ylim=(0, 1))
            axis.grid(alpha=0.3)
        for axis in axes[1]:
            axis.set_xlabel("evaluations per dimension")
        for axis in axes[:, 0]:
            axis.set_ylabel("share of targets reached")
        figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        figure.suptitle(f"BBOB in {dimension} dimensions, {budget} evaluations per dimension")
        figure.savefig(folder / f"ecdf_{dimension}d_{budget}.svg", metadata={"Date": None})
        pyplot.close(figure)
