"""The section on agents with a learned value: their returns and published ones, run by run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import numpy as np
from markupsafe import Markup

from dcem_lab.report.charts import Line, lines
from dcem_lab.report.formats import counted
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources
from dcem_lab.report.templates import part, render
from dcem_lab.suite import beside, numbers
from dcem_lab.suite.beside import MOST, Peers, ranked
from dcem_lab.suite.cards import WITHOUT_PAPER, Key, controller_cards, read_films
from dcem_lab.suite.numbers import CPU, DEFAULT, SUITE, Evaluation, Training, by_task, evaluated, seed_of
from dcem_lab.suite.questions import agent_rows
from dcem_lab.suite.results import CONTROLLERS as CONTROLLER_OF
from dcem_lab.suite.section import named, with_code, works_or_fails

CONTROLLER = f"{CONTROLLER_OF['agent']}-value"
COMMAND = "dcem train agent task=cheetah-run preset=best"
ALWAYS, OTHERS = "TD-MPC2", 2  # drawn with ours: this agent, and this many of the best others
APART = 0.05  # seeds are reported as different if their means differ by more than this fraction of the best
_COLORS = [f"{color}{dots}" for dots in ("", " dotted") for color in ("c1", "c2", "c3", "c4", "c6", "c7")]
_RETURNS = Scale(0, MOST)
_OVERALL = {
    DEFAULT: "All tasks together",
    SUITE: "All tasks together: one recipe, side by side on a GPU",
    CPU: "All tasks together: agents trained on a CPU",
}
_WHERE = {SUITE: "With one recipe for all tasks", CPU: "Trained on a CPU"}


def section(sources: Sources) -> Section:
    results = sources.results
    peers = beside.read_peers(results)
    trainings = numbers.read_trainings(results / "agent")
    shown = [one for one in trainings if not (one.aside or one.goes_on)]
    evaluations = numbers.read_evaluations(results, "agent")
    films = read_films(results / "dmc" / "videos")
    cards = controller_cards(evaluations, films, {one.controller for one in evaluations})
    opening = [key for key in cards if key in films and key[1] == CONTROLLER]
    body = render(
        "suite/value.html",
        command=COMMAND,
        curves=_curves(shown, peers),
        cards=[card for key, card in cards.items() if key not in opening],
        legend=WITHOUT_PAPER,
        episodes=numbers.episode_rows(evaluations),
        beside={
            task: beside.beside_rows(group, peers, seed_by_seed=True)
            for task, group in by_task(shown).items()
        },
        overall={
            heading: beside.aggregate_rows([one for one in shown if one.preset == preset], peers)
            for preset, heading in _OVERALL.items()
        },
        most=MOST,
        published=beside.peer_sources(results),
        questions=with_code(agent_rows(results)),
        runs=named(numbers.training_rows(trainings), "task", "variant", "seed"),
        records=numbers.records_of(trainings),
    )
    return Section(
        "value",
        "Learned values",
        body,
        failures=list(failures(evaluations, shown, peers)),
        opening=_opening({key: cards[key] for key in opening}, evaluations),
        about="Plans that end in a value: learning curves, all episodes, and published agents.",
    )


def _opening(cards: Mapping[Key, Markup], evaluations: Sequence[Evaluation]) -> Markup:
    """Videos of the agents, next to each other."""
    found = [
        f"{', '.join(f'{totals.mean():.0f}' for totals in one.runs.values())} on {one.task}"
        for one in evaluations
        if (one.task, one.controller) in cards
    ]
    if not found:
        return Markup()
    sentence = f"When plans end in a learned value, the mean returns by seed are {' and '.join(found)}."
    return render(
        "suite/opening.html", sentence=sentence, cards=list(cards.values()), legend=WITHOUT_PAPER[:2]
    )


def failures(evaluations: Sequence[Evaluation], trainings: Sequence[Training], peers: Peers) -> Iterator[str]:
    """Sentences whose condition the numbers meet: bimodal episodes, different seeds, others ahead."""
    for one in evaluations:
        for run, totals in one.runs.items():
            yield from works_or_fails(f"{one.task}: {one.label}, seed {seed_of(run)},", totals)
        means = [totals.mean() for totals in one.runs.values()]
        if min(means) < (1 - APART) * max(means):
            yield (
                f"{one.task}: results of {one.label} depend on the seed. The mean returns by seed are "
                f"{', '.join(f'{mean:.0f}' for mean in means)}."
            )
    for preset, where in _WHERE.items():
        yield from _behind(where, [one for one in trainings if one.preset == preset], peers)
    ours = (training for training in trainings if training.preset == DEFAULT)
    for training, at, returns, known in beside.standings(ours, peers):
        ahead = [f"{agent} ({mean:.0f})" for agent, mean in known.items() if mean > returns.mean()]
        if ahead:
            yield (
                f"{training.task}: after {at:,} steps, {len(ahead)} of {len(known)} published agents are "
                f"ahead of ours ({returns.mean():.0f}, {len(returns)} seeds): {', '.join(ahead)}."
            )


def _behind(where: str, trainings: Sequence[Training], peers: Peers) -> Iterator[str]:
    """On how many tasks of those trained there, most of them in short runs, `ALWAYS` is ahead."""
    compared = [one for one in beside.standings(trainings, peers) if ALWAYS in one[3]]
    lost = [
        f"{training.task} ({returns.mean():.0f}, {known[ALWAYS]:.0f})"
        for training, _, returns, known in compared
        if known[ALWAYS] > returns.mean()
    ]
    if lost:
        counts = f"{len(lost)} of {counted(len(compared), 'task')}"
        yield f"{where}, our agents are behind {ALWAYS} on {counts}: {', '.join(lost)}."


def _curves(trainings: Sequence[Training], peers: Peers) -> Markup:
    """A panel per task: ours with the range of its seeds, and published agents as far as we came."""
    panels = []
    colors = dict(zip(peers, cycle(_COLORS), strict=False))
    for task, group in by_task(trainings).items():
        ours = [_ours(one, f"c0{' dotted' * (i > 0)}") for i, one in enumerate(group)]
        most = max(float(line.x.max()) for line in ours)
        known = ranked(task, int(most // 100_000) * 100_000, peers)
        drawn = [*[ALWAYS] * (ALWAYS in known), *[agent for agent in known if agent != ALWAYS][:OTHERS]]
        others = []
        for agent in drawn:
            points = {at: returns.mean() for at, returns in sorted(peers[agent][task].items()) if at <= most}
            x, y = np.array([*points], float), np.array([*points.values()])
            others.append(Line(agent, colors[agent], x, y, thin=True))
        chart = lines(
            f"Returns on {task}", [*others, *ours], Scale(0, most), _RETURNS, "environment steps", "return"
        )
        panels.append(part("panel", task, chart, [(line.color, line.label) for line in (*ours, *others)]))
    caption = (
        "Mean return of the evaluation episodes over environment steps. Ours: mean and range over seeds. "
        f"Thin: means of {ALWAYS} and of the {OTHERS} published agents that are best where our curve ends."
    )
    return part("figure", caption, panels) if panels else Markup()


def _ours(training: Training, color: str) -> Line:
    """The mean over seeds at the evaluations of the one that ended first, and their range."""
    curves = [evaluated(curve, "eval_mean") for curve in training.curves]
    x = min((steps for steps, _ in curves), key=lambda steps: steps[-1])
    y = np.array([np.interp(x, *curve) for curve in curves])
    label = f"{training.label}, {counted(len(curves), 'seed')}"
    return Line(label, color, x, y.mean(0), y.min(0), y.max(0))
