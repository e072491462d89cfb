"""The section on the cartpole: a latent action space, learned through DCEM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from dcem_lab import paper
from dcem_lab.cartpole import numbers
from dcem_lab.cartpole.numbers import DIMS, EXPERT, STRONG, TAUS, Study, Variant, read_surface
from dcem_lab.report.charts import Line, Mark, Rule, lines, place, rows
from dcem_lab.report.claims import Claim, judge
from dcem_lab.report.pictures import film, shades
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, grouped, read_json, read_rows
from dcem_lab.report.statistics import binned, interval
from dcem_lab.report.templates import part, render

COMMAND = "dcem train cartpole-grid states_per_update=8 updates=12500"
COLORS = dict(zip(TAUS, ("c0", "c1", "c2"), strict=True))
_SPACES = {"tau1": "τ = 1", "tau0.1": "τ = 0.1", "tau0": "τ = 0", "pca": "PCA of expert plans"}
_FILMS = {
    "cartpole": "A pretrained decoder (left) and CEM over all 20 forces (right), executing one plan each.",
    "closed-loop": "Replanning after every step: a decoder trained on the states of its own closed loop "
    "(left), one trained as in the paper (middle), CEM over all 20 forces (right).",
}
HEIGHT_SHOWN = 45.0  # costs are very high where the cart runs away; the low ones are of interest
_FORCE, _BOX, _COSTS = Scale(-105, 105), Scale(-1, 1), Scale(-12, 8)


def section(sources: Sources) -> Section:
    root = sources.results / "cartpole"
    try:
        study = numbers.read(sources.results)
    except FileNotFoundError:
        study = None
    if study is None or not study.variants:
        absent = [Claim(*_naming(dim, 1.0), f"{paper.CARTPOLE_FACTORS[dim, 1.0]:.3f}") for dim in DIMS]
        return Section("cartpole", "Cartpole", part("not_run", COMMAND), absent)
    claims = {key: _claim(variant) for key, variant in study.variants.items()}
    drawn = (study.pictures / "dcem_samples.csv").exists()
    told = ("paper", "ours", "95% interval", "verdict")  # by the claims
    body = render(
        "cartpole/section.html",
        records=_records(root),
        expert=paper.CARTPOLE_EXPERT,
        claims=list(claims.values()),
        words=numbers.in_words(study),
        factors=_factors(study),
        again=[{name: row[name] for name in row if name not in told} for row in numbers.factors(study)],
        colors=[(COLORS[tau], f"τ = {tau:g}") for tau in TAUS],
        convergence=_convergence(study),
        surfaces=list(_surfaces(study)) if drawn else [],
        box=place(_BOX, _BOX, 330, 2),
        baselines=list(numbers.baselines(study)),
        closed_loop=numbers.closed_loop(sources.results),
        closed_loop_trainings=list(numbers.closed_loop_trainings(sources.results)),
        films=[(film(path), _FILMS.get(path.stem, "")) for path in sorted((root / "videos").glob("*.mp4"))],
    )
    soft = [claim for (_, tau), claim in claims.items() if tau == 1]
    data = _data(study) if drawn else {}
    return Section(
        "cartpole",
        "Cartpole",
        body,
        soft,
        list(_failures(study, sources.results)),
        {"cartpole-data": data} if drawn else {},
        _opening(study, data) if drawn else Markup(),
        "Improvement factors, convergence, latent spaces, other controllers and videos.",
    )


def _naming(dim: int, tau: float) -> tuple[str, str, str]:
    return "Cartpole", f"{dim} latent dimensions, τ = {tau:g}", "improvement factor"


def _claim(variant: Variant) -> Claim:
    found = interval(variant.factors)
    known = paper.CARTPOLE_FACTORS[variant.dim, variant.tau]
    return Claim(
        *_naming(variant.dim, variant.tau),
        f"{known:.3f}",
        f"{found.mean:.3f}",
        str(len(variant.factors)),
        found.bounds(),
        judge(variant.factors, known),
    )


def _records(root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(root.glob("d*-tau*/seed0/run.json")):
        record = read_json(path)
        # Members of one grid share a run: one line describes all.
        key = f"{record.get('command')} {record.get('started')}"
        found.setdefault(key, {**record, "names": []})["names"].append(path.parts[-3])
    largest_first = sorted(found.values(), key=lambda record: -len(record["names"]))
    named = {", ".join(record["names"]): record for record in largest_first}
    baselines = root / "baselines" / "seed0" / "run.json"
    if baselines.exists():
        named["baselines"] = read_json(baselines)
    return named


def _failures(study: Study, results: Path) -> Iterator[str | Markup]:
    """Sentences whose condition the numbers meet."""
    below = []
    for (dim, tau), variant in study.variants.items():
        ours, known = variant.factors.mean(), paper.CARTPOLE_FACTORS[dim, tau]
        if ours < known:
            other = study.one_state.get((dim, tau))
            again = f"; ours with one state, in a shorter run, {other.factors.mean():.3f}" if other else ""
            below.append(f"d = {dim}, τ = {tau:g}: {ours:.3f} (the paper {known:.3f}{again})")
    if below:
        yield part("below", below, len(study.variants), of="cartpole/failures.html")
    soft, hard = (_autoencoders(study, method) for method in ("dcem", "cem"))
    if soft and hard:
        yield (
            "Cartpole: the latent space of an autoencoder of expert plans works with a hard search, but not "
            f"with a soft one. CEM in it reaches costs of {hard}; DCEM {soft}. The paper's expert has "
            f"{paper.CARTPOLE_EXPERT}."
        )
    papers = [f"cartpole-{dim}" for dim in DIMS]
    rows = [row for row in numbers.closed_loop(results) if row["controller"] in papers]
    if rows:
        yield part("closed_loop", rows, of="cartpole/failures.html")


def _autoencoders(study: Study, method: str) -> str:
    """Mean costs by latent dimension, in words; nothing where they were not measured."""
    parts = []
    for dim in DIMS:
        costs = [
            cost
            for (name, states), cost in study.scores.items()
            if name.startswith(f"autoencoder-{dim}-{method}-") and states == "validation"
        ]
        parts += [f"{np.mean(np.concatenate(costs)):.2f} (d = {dim})"] if costs else []
    return ", ".join(parts)


def _factors(study: Study) -> Markup:
    strong = study.expert(STRONG)
    papers, strongs = [], []
    for (dim, tau), variant in study.variants.items():
        label, known = f"d = {dim}, τ = {tau:g}", paper.CARTPOLE_FACTORS[dim, tau]
        theirs = Mark(f"paper: {known:.3f}", "ink", known, shape="diamond")
        papers.append((label, [theirs, _interval_mark("ours", COLORS[tau], variant.factors, "dot")]))
        again = study.again(variant, "validation") / strong
        strongs.append((label, [_interval_mark("ours, fresh noise", COLORS[tau], again)]))
    scale = Scale(0, 1.5)
    rules = [Rule("the paper's expert", 1.0, "1 0")]
    chart = rows("Improvement factors", papers, scale, "improvement factor", rules)
    rules = [Rule("the strong expert", 1.0, "1 0"), Rule("the paper's expert", study.expert() / strong)]
    other = rows("Factors over the strong expert", strongs, scale, "factor over the strong expert", rules)
    tones = [("ink diamond", "paper"), *((COLORS[tau], f"ours, τ = {tau:g}") for tau in TAUS)]
    caption = (
        "Left: the paper's factors and ours, with 95% intervals over seeds. Right: the same decoders with "
        "new noise, relative to CEM with ten times the trajectories (line at 1). Dashed: the paper's expert."
    )
    panels = [
        part("panel", "Relative to the paper's expert", chart, tones),
        part("panel", "Relative to a strong expert", other),
    ]
    return part("figure", caption, panels)


def _interval_mark(label: str, color: str, samples: np.ndarray, shape: str = "square") -> Mark:
    found = interval(samples)
    mean, low, high = map(float, found)
    return Mark(f"{label}: {mean:.3f} {found.bounds()}", color, mean, low, high, shape)


def _convergence(study: Study) -> Markup:
    rules = [
        Rule("the paper's expert", study.expert(EXPERT)),
        Rule("the strong expert", study.expert(STRONG), "1 3"),
    ]
    panels = []
    for dim in DIMS:
        found = [study.variants[dim, tau] for tau in TAUS if (dim, tau) in study.variants]
        if not found:
            continue
        series = []
        for variant in found:
            x, curve = binned(variant.states, variant.validation, bins=42)
            label, shown = f"τ = {variant.tau:g}", (curve.mean(0), curve.min(0), curve.max(0))
            series.append(Line(label, COLORS[variant.tau], x, *shown))
        most = max(float(variant.states[-1]) for variant in found)
        title = f"{dim} latent dimensions"
        chart = lines(title, series, Scale(0, most), _COSTS, "states trained on", "cost", rules)
        panels.append(part("panel", title, chart))
    caption = (
        "Cost on the validation states during training: mean and range over seeds. "
        "Dashed: the paper's expert. Dotted: the strong one."
    )
    return part("figure", caption, panels)


def _surfaces(study: Study) -> Iterator[dict[str, Any]]:
    """C(z) of every latent space from the same states, with one scale per state."""
    spaces = [name for name in _SPACES if (study.pictures / f"surface_{name}_0.csv").exists()]
    for i in range(len(list(study.pictures.glob("surface_tau1_*.csv")))):
        surfaces = {name: read_surface(study.pictures / f"surface_{name}_{i}.csv") for name in spaces}
        low = min(cost.min() for _, _, cost in surfaces.values())
        for name, (z1, z2, cost) in surfaces.items():
            a, b = np.unravel_index(cost.argmin(), cost.shape)
            yield {
                "space": _SPACES[name],
                "state": i + 1,
                "address": _shaded(cost, low),
                "z": (float(z1[a]), float(z2[b])),
                "lowest": cost.min(),
            }


def _shaded(cost: np.ndarray, low: float) -> str:
    return shades(np.sqrt(np.maximum(cost.T - low, 0)), 0, float(np.sqrt(HEIGHT_SHOWN)))


def _opening(study: Study, data: dict[str, Any]) -> Markup:
    """The search in the latent space next to the one over all forces, with a slider over iterations."""
    steps, forces = place(Scale(0, 19), _FORCE)
    z1, z2 = place(_BOX, _BOX)
    _, _, cost = read_surface(study.pictures / "surface_tau1_0.csv")
    found = {name: f"{end['cost']:.2f} after {end['sampled']:,}" for name, (*_, end) in data.items()}
    return render(
        "cartpole/opening.html",
        sentence="A learned decoder maps two latent numbers to a plan of 20 forces: DCEM in that space "
        f"reaches a cost of {found['dcem']} trajectories, CEM over the forces {found['cem']}.",
        iterations=len(data["dcem"]),
        steps=steps,
        forces=forces,
        z1=z1,
        z2=z2,
        surface=_shaded(cost, float(cost.min())),
    )


def _data(study: Study) -> dict[str, Any]:
    """The iterations of both searches."""
    tables = {name: read_rows(study.pictures / f"{name}_samples.csv") for name in ("cem", "dcem")}
    return {
        name: [_step(rows) for rows in grouped(table, "iteration").values()] for name, table in tables.items()
    }


def _step(rows: list[dict[str, str]]) -> dict[str, Any]:
    """One iteration: some of its samples and, last, its mean; with latent points where there are any."""

    def numbers_of(letter: str, digits: int) -> list[list[float]]:
        found = [[row[name] for name in row if name[0] == letter] for row in rows]
        return np.array(found, float).round(digits).tolist()

    (*plans, plan), (*points, point) = numbers_of("u", 1), numbers_of("z", 4)
    step = {
        "sampled": int(rows[-1]["sampled"]),
        "cost": float(rows[-1]["cost"]),
        "plans": plans,
        "mean": plan,
    }
    return step | ({"z": points, "center": point} if point else {})
