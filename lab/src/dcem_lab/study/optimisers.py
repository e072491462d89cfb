"""The solvers beside other optimisers: tables of `benchmarks/optimisers`."""

from __future__ import annotations

from itertools import product

from dcem_lab.report.documents import NOT_MEASURED, Rows
from dcem_lab.report.sources import Sources, rows_if_any

# By their names in the tables: how a reader knows them.
_COLUMNS = {
    "dcem": "`DCEM()`",
    "dcem, paper": "its paper's settings",
    "dcem, full": "`FullGaussian`",
    "dcem, full, 50 samples": "with N = 50, no bounds",
    "cmaes": "`CMAES()`",
    "ipop": "`IPOP(tau=0)`",
    "pycma CMA-ES": "pycma",
    "pycma IPOP": "pycma, restarts",
    "evotorch CEM": "evotorch's CEM",
    "scipy DE": "scipy's DE",
}
_GROUPS = ("separable", "moderate", "ill-conditioned", "multimodal", "weak structure")
_CASES = tuple(product(("2", "5", "10", "20", "40"), ("100", "1000")))


def shares(sources: Sources) -> dict[tuple[str, str, str], dict[str, str]]:
    """Rows of the summary by optimiser, dimension and evaluations per dimension."""
    return {(row["optimiser"], row["dimension"], row["budget"]): row for row in _read(sources, "summary.csv")}


def overview(sources: Sources) -> Rows:
    """The mean share of targets of all functions."""
    found = shares(sources)
    return [
        {"dimensions": dimension, "evaluations": f"{int(dimension) * int(budget):,}"}
        | {title: _share(found.get((name, dimension, budget)), "all") for name, title in _COLUMNS.items()}
        for dimension, budget in _CASES
    ]


def groups(sources: Sources) -> Rows:
    """Shares by group of functions, with 1,000 evaluations per dimension."""
    found = shares(sources)
    names = ("dcem", "dcem, full", "dcem, full, 50 samples", "cmaes", "ipop", "pycma CMA-ES", "pycma IPOP")
    return [
        {"dimensions": dimension, "functions": group}
        | {_COLUMNS[name]: _share(found.get((name, dimension, "1000")), group) for name in names}
        for dimension in ("10", "20")
        for group in _GROUPS
    ]


def ratios(sources: Sources) -> Rows:
    """`CMAES` beside pycma, with 1,000 evaluations per dimension."""
    return [
        {"dimensions": row["dimension"], "functions": row["group"]}
        | {_COLUMNS[name]: row[name] for name in ("cmaes", "pycma CMA-ES")}
        | {"ratio": row["ratio"], "95% interval": f"[{row['low']}, {row['high']}]"}
        | {"runs per function": row["runs a function"]}
        for row in _read(sources, "ratios.csv")
        if row["dimension"] in ("10", "20") and row["budget"] == "1000"
    ]


def many(sources: Sources) -> Rows:
    """1,024 problems on one core: how long they take, beside a loop over pycma."""
    rows = [row for row in _read(sources, "many.csv") if row["seconds for all"]]
    loop = {
        row["problem"]: float(row["seconds for all"]) for row in rows if row["optimiser"].startswith("pycma")
    }
    return [
        {
            "problem": row["problem"],
            "optimiser": row["optimiser"],
            "seconds for all": row["seconds for all"],
            "times faster than pycma": f"{loop[row['problem']] / float(row['seconds for all']):.1f}",
            "median of the best values": row["median"],
        }
        for row in sorted(rows, key=lambda row: row["problem"])
        if row["problem"] in loop
    ]


def refined(sources: Sources) -> Rows:
    """Evaluations to the same quality without and with gradient steps, where both arrive."""
    return [
        {"problem": f"{row['problem']}, {row['quality']}", "solver": row["solver"]}
        | {name: f"{int(row[name]):,}" for name in ("evaluations", "with Refine()")}
        | {"times fewer": row["times fewer"]}
        for row in _read(sources, "refine.csv")
        if row["times fewer"]
    ]


def _read(sources: Sources, name: str) -> Rows:
    return rows_if_any(sources.checkout / "benchmarks" / "optimisers" / "results" / name)


def _share(row: dict[str, str] | None, group: str) -> str:
    return row[group] if row else NOT_MEASURED
