"""The opening: what DCEM is, in a paragraph, a picture, and a panel to play with."""

from __future__ import annotations

from typing import Any

from dcem_lab import paper
from dcem_lab.report.controls import slider
from dcem_lab.report.html import Child, Html, element, join, paragraph
from dcem_lab.report.sources import Section, Sources

_BOXES = (
    ("sample", "x ~ N(μ, σ²)", 20, 24),
    ("evaluate", "v = f(x)", 220, 24),
    ("soft top-k", "w = LML(−v / τ, k)", 220, 144),
    ("refit", "μ, σ from x and w", 20, 144),
)
_FORWARD = ("M140 52H216", "M280 82V140", "M220 172H144", "M80 144V86")
_BACKWARD = ("M216 62H144", "M270 140V86", "M144 182H216", "M90 86V140")


def section(sources: Sources) -> Section:
    body = join(
        element(
            "div",
            element(
                "div",
                paragraph(
                    "Many models end in a search: the plan of lowest cost, the label of lowest energy. The "
                    "cross-entropy method searches by sampling: draw candidates, keep the k best, refit "
                    "the distribution to them, repeat. Keeping the k best is a jump, so no gradient passes "
                    "through it. The ",
                    element("strong", "differentiable cross-entropy method"),
                    " replaces it by a soft choice: weights between 0 and 1 that sum to k and depend "
                    "smoothly on the values (the LML projection, with a temperature τ). Then the answer of "
                    "the search has a derivative with respect to everything the objective depends on, and "
                    "the objective can be learned like any other layer.",
                ),
                paragraph(
                    "The method is of ",
                    element("a", f"{paper.TITLE} ({paper.AUTHORS})", href=paper.ADDRESS),
                    ". This page shows an independent reproduction of it: every figure and table is read "
                    "from files of results, but for one that says so, and every result names the command "
                    "that makes it.",
                ),
            ),
            _picture(),
            class_="beside",
        ),
        element("h3", "Try it"),
        _panel(),
    )
    return Section("what", "What DCEM is", body)


def _picture() -> Html:
    """The loop, with gradients running against it."""
    boxes: list[Child] = []
    for name, formula, x, y in _BOXES:
        boxes.append(element("rect", x=x, y=y, width=120, height=58, rx=8))
        boxes.append(element("text", name, x=x + 60, y=y + 26, class_="step"))
        boxes.append(element("text", formula, x=x + 60, y=y + 44, class_="formula"))
    tip = element("path", d="M0 0L8 4L0 8Z")
    size: dict[str, Any] = {"markerWidth": 8, "markerHeight": 8, "refX": 7, "refY": 4, "orient": "auto"}
    markers = [
        element("marker", tip, id=f"tip-{kind}", class_=kind, **size) for kind in ("forward", "backward")
    ]
    arrows = [
        element("path", d=path, class_=kind, marker_end=f"url(#tip-{kind})")
        for kind, paths in (("forward", _FORWARD), ("backward", _BACKWARD))
        for path in paths
    ]
    svg = element(
        "svg",
        element("title", "The loop of DCEM: sample, evaluate, soft top-k, refit; gradients run backwards"),
        element("defs", *markers),
        element("g", boxes, class_="boxes"),
        element("g", arrows, class_="arrows"),
        viewBox="0 0 360 226",
        role="img",
        class_="loop",
    )
    caption = "One iteration. Solid: the search. Dashed: gradients, through weights, samples and objective."
    return element("figure", svg, element("figcaption", caption))


def _panel() -> Html:
    """Filled by live.js."""
    return element(
        "div",
        element(
            "div",
            slider("live-tau", "temperature τ", 0, 60, 40),
            slider("live-k", "elite k", 1, 39, 8),
            element("button", "next iteration", type="button", id="live-step"),
            element("button", "start again", type="button", id="live-reset"),
            class_="controls",
        ),
        element(
            "div",
            element(
                "div",
                element("h4", "Samples on the objective, and the distribution"),
                element("svg", viewBox="0 0 360 250", role="img", class_="chart", id="live-search"),
                class_="panel",
            ),
            element(
                "div",
                element("h4", "Weights, samples sorted by value"),
                element("svg", viewBox="0 0 360 250", role="img", class_="chart", id="live-weights"),
                class_="panel",
            ),
            class_="panels wide",
        ),
        element("output", id="live-readout", class_="readout", for_="live-tau live-k", aria_live="polite"),
        paragraph(
            "Computed in your browser. Dots grow with their weight; the dashed bell is the distribution "
            "that was sampled, the solid one what the next iteration samples. τ = 0 keeps exactly the k "
            "best: the weights are 0 or 1, and their derivative is 0.",
            class_="small",
        ),
        element("noscript", paragraph("The panels and sliders of this page need JavaScript.")),
        class_="explorer",
        id="live",
    )
