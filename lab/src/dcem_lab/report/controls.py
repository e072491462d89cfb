"""Things that the reader can move; all work with the keyboard."""

from __future__ import annotations

from collections.abc import Sequence

from dcem_lab.report.html import Html, element


def slider(id_: str, label: str, low: float, high: float, value: float, step: float = 1) -> Html:
    """A range with its label, and its value as text beside it."""
    return element(
        "div",
        element("label", label, for_=id_),
        element("input", type="range", id=id_, min=low, max=high, value=value, step=step),
        element("output", f"{value:g}", for_=id_, id=f"{id_}-value"),
        class_="slider",
    )


def play_button(slider_id: str) -> Html:
    """Moves a slider by itself."""
    return element(
        "button", "▶ play", type="button", class_="play", data_slider=slider_id, aria_pressed="false"
    )


def select(id_: str, label: str, options: Sequence[str], chosen: int = 0) -> Html:
    items = (element("option", text, value=i, selected=i == chosen) for i, text in enumerate(options))
    return element("label", f"{label} ", element("select", *items, id=id_), class_="select")
