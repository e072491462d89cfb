"""The section on the cartpole: a latent action space, learned through DCEM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dcem_lab import paper
from dcem_lab.cartpole import numbers
from dcem_lab.cartpole.figures import HEIGHT_SHOWN, read_samples, read_surface, smoothed
from dcem_lab.cartpole.numbers import DIMS, EXPERT, STRONG, TAUS, Study, Variant
from dcem_lab.report.charts import Line, Mark, Rule, figure, frame, legend, lines, panel, place, rows
from dcem_lab.report.controls import play_button, slider
from dcem_lab.report.html import Child, Html, element, join, paragraph
from dcem_lab.report.pictures import shades, video
from dcem_lab.report.scales import Scale
from dcem_lab.report.sources import Section, Sources, not_run, provenance, read_json, read_rows, reproduce
from dcem_lab.report.style import interval
from dcem_lab.report.tables import NOT_RUN, Claim, claims_table, details, judge, table

COMMAND = "dcem train cartpole-grid states_per_update=8 updates=12500"
COLORS = dict(zip(TAUS, ("c0", "c1", "c2"), strict=True))
_SPACES = {"tau1": "τ = 1", "tau0.1": "τ = 0.1", "tau0": "τ = 0", "pca": "PCA of expert plans"}
_FORCE, _BOX, _COSTS = Scale(-105, 105), Scale(-1, 1), Scale(-12, 8)


def section(sources: Sources) -> Section:
    root = sources.results / "cartpole"
    try:
        study = numbers.read(sources.results)
    except FileNotFoundError:
        study = None
    if study is None or not study.variants:
        absent = [
            Claim(*_naming(dim, 1.0), f"{paper.CARTPOLE_FACTORS[dim, 1.0]:.3f}", "", "", "", NOT_RUN)
            for dim in DIMS
        ]
        return Section("cartpole", "Cartpole", not_run(COMMAND), absent)
    records = _records(root)
    claims = {key: _claim(variant) for key, variant in study.variants.items()}
    pictures = (study.pictures / "dcem_samples.csv").exists()
    body = join(
        paragraph(
            "A cart swings up a pole; a plan is 20 forces. Instead of searching over all of them, a "
            "decoder maps a few latent numbers to a plan, and is trained through the search: DCEM finds "
            "the latent point of lowest cost, and gradients of that cost reach the decoder, also through "
            "where the search ends.",
        ),
        reproduce(next(iter(records.values()))),
        _explorer(study) if pictures else None,
        element("h3", "Beside the paper"),
        paragraph(
            "The improvement factor: the best validation cost over the expert's "
            f"({paper.CARTPOLE_EXPERT}, CEM with N=100, k=10, T=30). Above 1 is better than that expert.",
        ),
        claims_table(list(claims.values())),
        paragraph(numbers.in_words(study)),
        _factors(study),
        details(
            "The same decoders with fresh noise, on fresh states, and over a strong expert", _more(study)
        ),
        _convergence(study),
        _surfaces(study) if pictures else None,
        element("h3", "Everything else on the same states"),
        table(numbers.baselines(study)),
        _films(root),
        provenance(records),
    )
    soft = [claim for (_, tau), claim in claims.items() if tau == 1]
    return Section("cartpole", "Cartpole", body, soft, {"cartpole-data": _data(study)} if pictures else {})


def _naming(dim: int, tau: float) -> tuple[str, str, str]:
    return "Cartpole", f"{dim} latent dimensions, τ = {tau:g}", "improvement factor"


def _claim(variant: Variant) -> Claim:
    factors = variant.best[:, -1] / paper.CARTPOLE_EXPERT
    mean, low, high = interval(factors)
    known = paper.CARTPOLE_FACTORS[variant.dim, variant.tau]
    return Claim(
        *_naming(variant.dim, variant.tau),
        f"{known:.3f}",
        f"{mean:.3f}",
        str(len(factors)),
        f"[{low:.3f}, {high:.3f}]",
        judge(factors, known),
    )


def _more(study: Study) -> Html:
    hidden = ("paper", "ours", "95% interval", "verdict")
    found = numbers.factors(study)
    return table([{name: value for name, value in row.items() if name not in hidden} for row in found])


def _records(root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(root.glob("d*-tau*/run.json")):
        record = next(iter(read_json(path).values()))
        # Members of one grid share a run; one line tells of all.
        key = f"{record.get('command')} {record.get('started')}"
        found.setdefault(key, {**record, "names": []})["names"].append(path.parent.name)
    largest_first = sorted(found.values(), key=lambda record: -len(record["names"]))
    named = {", ".join(record["names"]): record for record in largest_first}
    if (root / "baselines.json").exists():
        named["baselines"] = read_json(root / "baselines.json")
    return named


# Figures


def _factors(study: Study) -> Html:
    scale = Scale(0, 1.5)
    groups = []
    for (dim, tau), variant in study.variants.items():
        known, ours = paper.CARTPOLE_FACTORS[dim, tau], variant.best[:, -1] / paper.CARTPOLE_EXPERT
        mean, low, high = (float(value) for value in interval(ours))
        marks = [
            Mark(f"paper: {known:.3f}", "ink", known, shape="diamond"),
            Mark(f"ours: {mean:.3f} [{low:.3f}, {high:.3f}]", COLORS[tau], mean, low, high),
        ]
        groups.append((f"d = {dim}, τ = {tau:g}", marks))
    rules = [Rule("the paper's expert", 1.0, "1 0")]
    chart = rows("Improvement factors", groups, scale, "improvement factor", rules)
    strong = study.expert(STRONG)
    again = [
        (
            f"d = {dim}, τ = {tau:g}",
            [_interval_mark("ours, fresh noise", COLORS[tau], study.again(variant, "validation") / strong)],
        )
        for (dim, tau), variant in study.variants.items()
    ]
    rules = [Rule("the strong expert", 1.0, "1 0"), Rule("the paper's expert", study.expert() / strong)]
    other = rows("Factors over the strong expert", again, scale, "factor over the strong expert", rules)
    tones = [("ink diamond", "paper"), *((COLORS[tau], f"ours, τ = {tau:g}") for tau in TAUS)]
    caption = (
        "Left: the paper's factors and ours, with 95% intervals over seeds. Right: the same decoders with "
        "noise that did not choose them, over CEM with ten times the trajectories (line at 1); dashed, the "
        "paper's expert."
    )
    return figure(caption, panel("Over the paper's expert", chart, legend(tones)),
                  panel("Over a strong expert", other))  # fmt: skip


def _interval_mark(label: str, color: str, samples: np.ndarray) -> Mark:
    mean, low, high = (float(value) for value in interval(samples))
    return Mark(f"{label}: {mean:.3f} [{low:.3f}, {high:.3f}]", color, mean, low, high, "square")


def _convergence(study: Study) -> Html:
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
            x, curve = smoothed(variant.states, variant.validation)
            series.append(
                Line(
                    f"τ = {variant.tau:g}", COLORS[variant.tau], x, curve.mean(0), curve.min(0), curve.max(0)
                )
            )
        most = max(float(variant.states[-1]) for variant in found)
        title = f"{dim} latent dimensions"
        panels.append(
            panel(title, lines(title, series, Scale(0, most), _COSTS, "states trained on", "cost", rules))
        )
    caption = (
        "Cost on the validation states while training: mean, lowest and highest of the seeds. "
        "Dashed: the paper's expert, dotted: the strong one."
    )
    return join(legend([(COLORS[tau], f"τ = {tau:g}") for tau in TAUS]), figure(caption, *panels))


def _surfaces(study: Study) -> Html:
    spaces = [name for name in _SPACES if (study.pictures / f"surface_{name}_0.csv").exists()]
    starts = len(list(study.pictures.glob("surface_tau1_*.csv")))
    panels = []
    for i in range(starts):
        surfaces = {name: read_surface(study.pictures / f"surface_{name}_{i}.csv") for name in spaces}
        low = min(cost.min() for _, _, cost in surfaces.values())
        for name, (z1, z2, cost) in surfaces.items():
            x, y = place(_BOX, _BOX, 330, 2)
            a, b = np.unravel_index(cost.argmin(), cost.shape)
            star = element("circle", cx=x(float(z1[a])), cy=y(float(z2[b])), r=6, class_="lowest")
            chart = frame(
                f"C(z) of {_SPACES[name]} from state {i + 1}", x, y, _image(x, y, _shaded(cost, low)), star,
                height=296, ticks=False,
            )  # fmt: skip
            panels.append(
                panel(f"{_SPACES[name]} · state {i + 1}", chart, _small(f"lowest {cost.min():.2f}"))
            )
    caption = (
        "The cost of a plan over two latent dimensions from −1 to 1, from three states: lighter is lower, "
        "the ring marks the lowest."
    )
    grid = element("div", *panels, class_="panels quarters")
    return element("figure", grid, element("figcaption", caption))


def _small(text: str) -> Html:
    return paragraph(text, class_="small")


def _shaded(cost: np.ndarray, low: float) -> str:
    return shades(np.sqrt(np.maximum(cost.T - low, 0)), 0, float(np.sqrt(HEIGHT_SHOWN)))


def _image(x: Scale, y: Scale, address: str) -> Html:
    return element(
        "image", x=x.first, y=y.last, width=x.last - x.first, height=y.first - y.last, href=address,
        preserveAspectRatio="none", class_="surface",
    )  # fmt: skip


def _films(root: Path) -> Html | None:
    films = sorted((root / "videos").glob("*.mp4"))
    caption = "The shipped controller (left) and CEM over all 20 forces (right): one plan each, carried out."
    return element("div", *(video(path, caption) for path in films), class_="films") if films else None


def closed_loop(results: Path) -> list[dict[str, str]]:
    """What planning anew after every step does, or nothing where that has not been run."""
    path = results / "cartpole" / "closed_loop.csv"
    return read_rows(path) if path.exists() else []


# The figure with a slider


def _explorer(study: Study) -> Html:
    iterations = int(read_samples(study.pictures / "dcem_samples.csv")["iteration"].max())
    panels = [
        _plan_panel("cem", "CEM over all forces"),
        _plan_panel("dcem", "Embedded DCEM: decoded forces"),
        _latent_panel(study.pictures / "surface_tau1_0.csv"),
    ]
    controls = element(
        "div",
        slider("cartpole-iteration", "iteration", 1, iterations, 1),
        play_button("cartpole-iteration"),
        class_="controls",
    )
    caption = (
        "From one state, iteration by iteration: the plans that each search samples (thin) and its mean "
        "(thick), and the samples of embedded DCEM on the cost over its two latent dimensions (lighter is "
        "lower)."
    )
    return element("div", controls, figure(caption, *panels), class_="explorer", id="cartpole-explorer")


def _plan_panel(method: str, title: str) -> Html:
    x, y = place(Scale(0, 19), _FORCE)
    layers: list[Child] = [element("g", class_="plans"), element("path", class_="mean")]
    color = "c1" if method == "cem" else "c0"
    svg = frame(
        title,
        x,
        y,
        element("g", *layers, class_=color),
        xlabel="step",
        ylabel="force",
        id_=f"cartpole-{method}",
    )
    return panel(title, svg, _readout(method))


def _latent_panel(surface: Path) -> Html:
    x, y = place(_BOX, _BOX)
    _, _, cost = read_surface(surface)
    image = _image(x, y, _shaded(cost, float(cost.min())))
    points = element("g", class_="points")
    svg = frame("Latent space", x, y, image, points, xlabel="z₁", ylabel="z₂", id_="cartpole-latent")
    return panel("Its latent space", svg, _readout("latent"))


def _readout(name: str) -> Html:
    return element("output", class_="readout", for_="cartpole-iteration", id=f"cartpole-{name}-readout")


def _data(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for method in ("cem", "dcem"):
        table_ = read_samples(study.pictures / f"{method}_samples.csv")
        steps = []
        for iteration in sorted(set(table_["iteration"])):
            now = table_["iteration"] == iteration
            samples, mean = now & ~table_["is_mean"], now & table_["is_mean"]
            step: dict[str, Any] = {
                "sampled": int(table_["sampled"][mean][0]),
                "cost": float(table_["cost"][mean][0]),
                "plans": table_["u"][samples].round(1).tolist(),
                "mean": table_["u"][mean][0].round(1).tolist(),
            }
            if table_["z"].size:
                step["z"] = table_["z"][samples].round(4).tolist()
                step["center"] = table_["z"][mean][0].round(4).tolist()
            steps.append(step)
        found[method] = steps
    return found
