"""The tables of README and docs: `python -m dcem_lab.study.tables` rebuilds them, in a checkout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dcem_lab import paper
from dcem_lab.cartpole import numbers as cartpole_numbers
from dcem_lab.cartpole import section as cartpole_section
from dcem_lab.regression import numbers as regression
from dcem_lab.regression import section as regression_section
from dcem_lab.report.documents import NOT_MEASURED, Rows, Tables, rewritten
from dcem_lab.report.formats import duration
from dcem_lab.report.sources import Sources, read_rows, rows_if_any
from dcem_lab.study import gymnasium_tasks, headline, optimisers, peers
from dcem_lab.study.speed import loop_rows
from dcem_lab.suite import down_numbers, questions, realtime
from dcem_lab.suite import section as suite_section
from dcem_lab.suite.beside import aggregate_rows, read_peers, task_rows
from dcem_lab.suite.numbers import (
    Training,
    episode_rows,
    label_of,
    main_trainings,
    planning_rows,
    read_evaluations,
    read_trainings,
    training_rows,
)
from dcem_lab.suite.walker_starts import start_rows


def pages(checkout: Path) -> list[Path]:
    """Where tables may be."""
    return [checkout / "README.md", *sorted((checkout / "docs").glob("**/*.md")),
            *sorted((checkout / "lab" / "docs").glob("**/*.md"))]  # fmt: skip


def sources_in(checkout: Path) -> Sources:
    """The files that the tables of a checkout come from."""
    return Sources(checkout / "lab" / "results", checkout)


def _verdicts(sources: Sources) -> Rows:
    """The paper's numbers and ours, with the report's verdicts."""
    return [
        {
            "number": claim.name,
            "the paper": claim.paper,
            "ours": claim.ours or NOT_MEASURED,
            "seeds": claim.seeds,
            "95% interval": claim.interval,
            "verdict": f"{claim.verdict.sign} {claim.verdict.words}",
        }
        for module in (regression_section, cartpole_section, suite_section)
        for claim in module.section(sources).claims
    ]


# The control suite


def _phase_one(sources: Sources) -> list[Training]:
    """Without those that have a page of their own."""
    apart = questions.apart(sources.results)
    return [one for one in read_trainings(sources.results / "planet") if one.name not in apart]


def _curves(sources: Sources) -> Rows:
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
        for training in _phase_one(sources)
        for seed, curve in zip(training.records, training.curves, strict=True)
        for i in np.flatnonzero(np.isfinite(curve["eval_median"]))
    ]


def _evaluations(sources: Sources, others: bool = True) -> Rows:
    """The three controllers on both tasks, compared with the paper; all others below."""
    found = {(e.task, e.controller): e for e in read_evaluations(sources.results)}
    rows = []
    more = [key for key in found if others and key not in paper.DMC_RETURNS]
    for key in [*paper.DMC_RETURNS, *more]:
        one, known = found.get(key), paper.DMC_RETURNS.get(key)
        rows.append(
            {
                "task": key[0],
                "controller": label_of(key[1], sources.results),
                "the paper": str(known) if known else "",
                "ours": str(one.quartiles) if one else NOT_MEASURED,
                "our mean": f"{np.mean(one.totals):.0f}" if one else "",
                "episodes": str(len(one.totals)) if one else "",
                "trajectories per plan": one.sampled if one else "",
            }
        )
    return rows


def _agents_overall(sources: Sources) -> Rows:
    """Interquartile means over all tasks."""
    trainings = main_trainings(sources.results)
    return aggregate_rows(trainings, read_peers(sources.results)).get("interquartile mean", [])


# Choosing settings


def _regression(sources: Sources) -> Rows:
    rows = []
    for variant in regression.read_variants(sources.results):
        schedule = variant.config.get("schedule", "plateau"), variant.config["eval_every"]
        if variant.config["method"] == "dcem" and schedule == ("plateau", 200):  # others differ in more
            errors, config = variant.error_at(variant.config["n_iters"]), variant.config
            rows.append(
                {
                    "τ": f"{config['tau']:g}",
                    "T": str(config["n_iters"]),
                    "error, by seed": ", ".join(f"{error:.1e}" for error in errors),
                    f"after {variant.errors.shape[1]} iterations, relative to that": ", ".join(
                        f"{factor:.1f}" for factor in variant.growth
                    ),
                    "predictions at a minimum": f"{variant.at_minimum.mean():.0%}",
                }
            )
    return rows


def _cartpole(sources: Sources) -> Rows:
    columns = ("latent dimension", "τ", "paper", "ours", "95% interval", "fresh states", "verdict")
    return [
        {name: row[name] for name in columns}
        for row in cartpole_numbers.factors(cartpole_numbers.read(sources.results))
    ]


def _baselines(sources: Sources, cem: bool, column: str) -> Rows:
    """CEM over all forces, or latent spaces learned in other ways."""
    columns = ("controller", "trajectories", "cost", column)
    rows = cartpole_numbers.baselines(cartpole_numbers.read(sources.results))
    return [
        {name: row[name] for name in columns} for row in rows if row["controller"].startswith("CEM") == cem
    ]


def _temperatures(sources: Sources) -> Rows:
    """A row per setting, a column per problem and number of iterations."""
    path = sources.checkout / "benchmarks" / "optimisers" / "results" / "temperatures.csv"
    found: dict[str, dict[str, str]] = {}
    for row in rows_if_any(path):
        column = f"{row['problem']}, T = {row['iterations']}"
        found.setdefault(row["setting"], {})[column] = row["result (lower is better)"]
    return [{"setting": f"`{setting}`", **results} for setting, results in found.items()]


def _backward(sources: Sources) -> Rows:
    folder = sources.benchmarks
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


def _differentiation(sources: Sources) -> Rows:
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
        for row in read_rows(sources.gpu_benchmarks / "differentiation.csv")
    ]


def _unit(value: str, unit: str) -> str:
    try:
        return f"{float(value):,.0f} {unit}"
    except ValueError:
        return value  # it ran out of memory


def _error(row: dict[str, str]) -> str:
    return f"{float(row['relative error']):.2f}" if row["relative error"] else "no gradient of x̂"


TABLES: Tables = {
    "headline": lambda sources: headline.rows(sources),
    "verdicts": _verdicts,
    "planet": lambda sources: training_rows(_phase_one(sources)),
    "embed": lambda sources: training_rows(read_trainings(sources.results / "embed")),
    "ppo": lambda sources: training_rows(read_trainings(sources.results / "ppo")),
    "planet-curves": _curves,
    "planet-questions": lambda sources: questions.planet_rows(sources.results),
    "paper-preset": lambda sources: questions.preset_rows(sources.results),
    "embed-questions": lambda sources: questions.embed_rows(sources.results),
    "ppo-questions": lambda sources: questions.ppo_rows(sources.results),
    "starts": lambda sources: start_rows(sources.results),
    "promises": lambda sources: down_numbers.promise_rows(sources.results),
    "taking-over": lambda sources: down_numbers.taking_over_rows(sources.results),
    "getting-up": lambda sources: down_numbers.getting_up_rows(sources.results),
    "finetuned": lambda sources: questions.finetuned_rows(sources.results),
    "agents": lambda sources: task_rows(sources.results),
    "agents-overall": _agents_overall,
    "agent-episodes": lambda sources: episode_rows(read_evaluations(sources.results, "agent")),
    "agent-questions": lambda sources: questions.agent_rows(sources.results),
    "gymnasium": gymnasium_tasks.rows,
    "gymnasium-commands": gymnasium_tasks.commands,
    "loop": lambda sources: loop_rows(sources),
    "returns": lambda sources: _evaluations(sources, others=False),
    "evaluations": _evaluations,
    "planning": lambda sources: planning_rows(sources.results),
    "decisions": lambda sources: realtime.decision_rows(sources.results),
    "regression": _regression,
    "regression-variants": lambda sources: regression.table(regression.read_variants(sources.results)),
    "cartpole": _cartpole,
    "cem": lambda sources: _baselines(sources, True, "lowest and highest draw"),
    "spaces": lambda sources: _baselines(sources, False, "cost on fresh states"),
    "closed-loop": lambda sources: cartpole_numbers.closed_loop(sources.results),
    "closed-loop-trainings": lambda sources: cartpole_numbers.closed_loop_trainings(sources.results),
    "temperatures": _temperatures,
    "backward": _backward,
    "optimisers": optimisers.overview,
    "optimisers-groups": optimisers.groups,
    "optimisers-ratios": optimisers.ratios,
    "many-problems": optimisers.many,
    "refine": optimisers.refined,
    "gpu-targets": lambda sources: rows_if_any(sources.gpu_benchmarks / "targets.csv"),
    "differentiation": _differentiation,
    "layers-quadratic": lambda sources: peers.layer_rows(sources, "quadratic"),
    "layers-multimodal": lambda sources: peers.layer_rows(sources, "multimodal"),
    "layers-projection": lambda sources: peers.layer_rows(sources, "projection"),
    "layers-pendulum": lambda sources: peers.layer_rows(sources, "pendulum"),
    "layers-regression": lambda sources: peers.layer_rows(sources, "regression"),
    "soft-topk": peers.topk_rows,
    "soft-topk-embedding": peers.embedding_rows,
    "solves": peers.solve_rows,
}


if __name__ == "__main__":
    for page in pages(Path()):
        before = page.read_text(encoding="utf-8")
        after = rewritten(before, TABLES, sources_in(Path()))
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"renewed {page}")
