"""The tables of README and docs: `python -m dcem_lab.study.tables` rebuilds them, in a checkout."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from dcem_lab import paper
from dcem_lab.cartpole import numbers as cartpole
from dcem_lab.cartpole import section as cartpole_section
from dcem_lab.regression import numbers as regression
from dcem_lab.regression import section as regression_section
from dcem_lab.report.documents import NOT_MEASURED, Rows, Tables, rewritten
from dcem_lab.report.formats import duration, if_number
from dcem_lab.report.sources import Sources, grouped, read_rows, rows_if_any
from dcem_lab.study import gymnasium_tasks, headline, optimisers, peers, speed
from dcem_lab.suite import beside, down_numbers, parts, questions, realtime, walker_starts
from dcem_lab.suite import numbers as suite
from dcem_lab.suite import section as suite_section


def pages(checkout: Path) -> list[Path]:
    """Where tables may be."""
    docs = (sorted((checkout / folder).glob("docs/**/*.md")) for folder in ("", "lab"))
    return [checkout / "README.md", *chain(*docs)]


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


def _phase_one(sources: Sources) -> list[suite.Training]:
    """Without those that have a page of their own."""
    apart = questions.apart(sources.results)
    return [one for one in suite.read_trainings(sources.results / "planet") if one.name not in apart]


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
    found = {(e.task, e.controller): e for e in suite.read_evaluations(sources.results)}
    for key in dict.fromkeys([*paper.DMC_RETURNS, *(found if others else ())]):
        one, known = found.get(key), paper.DMC_RETURNS.get(key)
        yield {
            "task": key[0],
            "controller": suite.label_of(key[1], sources.results),
            "the paper": str(known) if known else "",
            "ours": str(one.quartiles) if one else NOT_MEASURED,
            "our mean": f"{np.mean(one.totals):.0f}" if one else "",
            "episodes": str(len(one.totals)) if one else "",
            "trajectories per plan": one.sampled if one else "",
        }


def _agents_overall(sources: Sources, preset: str = suite.DEFAULT) -> Rows:
    """Interquartile means over all tasks."""
    trainings, published = suite.main_trainings(sources.results, preset), beside.read_peers(sources.results)
    return beside.aggregate_rows(trainings, published).get("interquartile mean", [])


def _regression(sources: Sources) -> Rows:
    for variant in regression.read_variants(sources.results):
        config = variant.config
        schedule = config.get("schedule", "plateau"), config["eval_every"]
        if config["method"] == "dcem" and schedule == ("plateau", 200):  # others differ in more
            after = f"after {variant.errors.shape[1]} iterations, relative to that"
            yield {
                "τ": f"{config['tau']:g}",
                "T": str(config["n_iters"]),
                "error, by seed": ", ".join(f"{error:.1e}" for error in variant.trained_error),
                after: ", ".join(f"{factor:.1f}" for factor in variant.growth),
                "predictions at a minimum": f"{variant.at_minimum.mean():.0%}",
            }


def _cartpole(sources: Sources) -> Rows:
    columns = ("latent dimension", "τ", "paper", "ours", "95% interval", "fresh states", "verdict")
    return _only(columns, cartpole.factors(cartpole.read(sources.results)))


def _baselines(sources: Sources, cem: bool, column: str) -> Rows:
    """CEM over all forces, or latent spaces learned in other ways."""
    rows = cartpole.baselines(cartpole.read(sources.results))
    chosen = (row for row in rows if row["controller"].startswith("CEM") == cem)
    return _only(("controller", "trajectories", "cost", column), chosen)


def _only(columns: Iterable[str], rows: Rows) -> Rows:
    return [{name: row[name] for name in columns} for row in rows]


def _temperatures(sources: Sources) -> Rows:
    """A row per setting, a column per problem and number of iterations."""
    path = sources.checkout / "benchmarks" / "optimisers" / "results" / "temperatures.csv"
    return [
        {"setting": f"`{setting}`"}
        | {f"{row['problem']}, T = {row['iterations']}": row["result (lower is better)"] for row in found}
        for (setting,), found in grouped(rows_if_any(path), "setting").items()
    ]


def _backward(sources: Sources) -> Rows:
    folder = sources.benchmarks
    warm, cold = (
        {row["contender"]: row for row in read_rows(folder / f"{name}.csv")}
        for name in ("backward", "backward_cold")
    )
    return [
        {
            "mode": f"`{name}`",
            "time": if_number(row["forward+backward ratio"], "{:.2f}".format),
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
            "time": if_number(row["ms"], "{:,.0f} ms".format),  # or it ran out of memory
            "memory": if_number(row["MB"], "{:,.0f} MB".format),
            "device": row["device"],
        }
        for row in read_rows(sources.gpu_benchmarks / "differentiation.csv")
    ]


def _error(row: dict[str, str]) -> str:
    return f"{float(row['relative error']):.2f}" if row["relative error"] else "no gradient of x̂"


TABLES: Tables = {
    "headline": headline.rows,
    "verdicts": _verdicts,
    "planet": lambda sources: suite.training_rows(_phase_one(sources)),
    "embed": lambda sources: suite.training_rows(suite.read_trainings(sources.results / "embed")),
    "ppo": lambda sources: suite.training_rows(suite.read_trainings(sources.results / "ppo")),
    "planet-curves": _curves,
    "planet-questions": lambda sources: questions.planet_rows(sources.results),
    "paper-preset": lambda sources: questions.preset_rows(sources.results),
    "embed-questions": lambda sources: questions.embed_rows(sources.results),
    "ppo-questions": lambda sources: questions.ppo_rows(sources.results),
    "starts": lambda sources: walker_starts.start_rows(sources.results),
    "promises": lambda sources: down_numbers.promise_rows(sources.results),
    "taking-over": lambda sources: down_numbers.taking_over_rows(sources.results),
    "getting-up": lambda sources: down_numbers.getting_up_rows(sources.results),
    "finetuned": lambda sources: questions.finetuned_rows(sources.results),
    "agents": lambda sources: beside.task_rows(sources.results),
    "agents-overall": _agents_overall,
    "agents-suite": lambda sources: beside.task_rows(sources.results, suite.SUITE),
    "agents-suite-overall": partial(_agents_overall, preset=suite.SUITE),
    "agents-suite-fewer-model-updates": lambda sources: beside.task_rows(
        sources.results, "suite-fewer-model-updates"
    ),
    "agents-cpu": lambda sources: beside.task_rows(sources.results, suite.CPU),
    "agents-cpu-overall": partial(_agents_overall, preset=suite.CPU),
    "agents-cpu-questions": lambda sources: questions.agent_rows(
        sources.results, "agent-cpu", (50_000, 100_000)
    ),
    "agents-cpu-fewer-updates": lambda sources: beside.task_rows(sources.results, "cpu-fewer-updates"),
    "agent-episodes": lambda sources: suite.episode_rows(suite.read_evaluations(sources.results, "agent")),
    "agent-parts": lambda sources: parts.part_rows(sources.results),
    "agent-questions": lambda sources: questions.agent_rows(sources.results),
    "gymnasium": gymnasium_tasks.rows,
    "gymnasium-commands": gymnasium_tasks.commands,
    "loop": speed.loop_rows,
    "returns": partial(_evaluations, others=False),
    "evaluations": _evaluations,
    "planning": lambda sources: suite.planning_rows(sources.results),
    "decisions": lambda sources: realtime.decision_rows(sources.results),
    "regression": _regression,
    "regression-variants": lambda sources: regression.table(regression.read_variants(sources.results)),
    "cartpole": _cartpole,
    "cem": partial(_baselines, cem=True, column="lowest and highest draw"),
    "spaces": partial(_baselines, cem=False, column="cost on fresh states"),
    "closed-loop": lambda sources: cartpole.closed_loop(sources.results),
    "closed-loop-trainings": lambda sources: cartpole.closed_loop_trainings(sources.results),
    "temperatures": _temperatures,
    "backward": _backward,
    "optimisers": optimisers.overview,
    "optimisers-groups": optimisers.groups,
    "optimisers-ratios": optimisers.ratios,
    "many-problems": optimisers.many,
    "refine": optimisers.refined,
    "gpu-targets": speed.target_rows,
    "differentiation": _differentiation,
    **{f"layers-{name}": partial(peers.layer_rows, problem=name) for name in peers.TITLES},
    "soft-topk": peers.topk_rows,
    "soft-topk-gpu": peers.gpu_topk_rows,
    "soft-topk-embedding": peers.embedding_rows,
    "solves": peers.solve_rows,
    "compiling": peers.compiling_rows,
}


if __name__ == "__main__":
    for page in pages(Path()):
        before = page.read_text(encoding="utf-8")
        after = rewritten(before, TABLES, sources_in(Path()))
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"renewed {page}")
