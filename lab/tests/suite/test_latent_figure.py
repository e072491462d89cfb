"""The figure of a latent action space: its numbers and its pixels come from the files."""

import base64
import json
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dcem_lab.suite.latent_figure import latent_figure

AXIS, CELLS = (-2, -1, 0, 1, 2), (-1, 1)
HORIZON, ACTIONS = 3, 2


def write(path: Path, columns: str, rows) -> None:
    path.write_text("\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.fixture
def folder(tmp_path) -> Path:
    """One moment, step 1: the return is highest at (1, −2); only one decoded action is not zero."""
    inside = tmp_path / "latent" / "some-controller"
    inside.mkdir(parents=True)
    surface = [(1, a, b, 7.25 - (a - 1) ** 2 - (b + 2) ** 2) for a in AXIS for b in AXIS]
    write(inside / "surface.csv", "moment,a,b,return", surface)
    actions = [
        (1, a, b, t, i, 1 if (a, b, t, i) == (1, -1, 2, 0) else 0)
        for a in CELLS for b in CELLS for t in range(HORIZON) for i in range(ACTIONS)
    ]  # fmt: skip
    write(inside / "actions.csv", "moment,a,b,t,action,value", actions)
    steps = [(t, np.cos(t * np.pi / 2), np.sin(t * np.pi / 2), 5.5 + t) for t in range(13)]
    write(inside / "path.csv", "step,a,b,return", steps)
    record = {"task": "cheetah-run", "total": 612.4, "share": 0.57, "command": "python -m some.module"}
    (inside / "run.json").write_text(json.dumps(record))
    return tmp_path / "latent"


def images(page: str) -> list[np.ndarray]:
    """Grey levels, rows from the top: colour bar, heat map, actions."""
    found = re.findall(r'href="data:image/png;base64,([^"]*)"', page)
    return [np.array(Image.open(BytesIO(base64.b64decode(one))).convert("L")).astype(int) for one in found]


def words(folder: Path) -> str:
    return " ".join(latent_figure(folder).split())


def test_shows_the_numbers_of_the_files(folder):
    page = words(folder)
    assert "some-controller" in page and "Step 1 of 13" in page
    assert "Predicted return: 6.5 at the ring, 7.2 at best." in page
    assert "return of 612" in page and "57% of the variance" in page
    assert "circle the centre 3 times" in page  # a quarter of a circle per step
    assert "3 steps (left to right) of 2 actions" in page
    assert "python -m some.module" in page


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("surface.csv", "1,1,-2,7.25", "1,1,-2,9.25", "9.2 at best"),
        ("path.csv", ",6.5", ",4.5", "4.5 at the ring"),
        ("actions.csv", "1,1,-1,2,0,1", "1,1,-1,2,0,0.5", "to 0.5 (darkest)"),
        ("run.json", "612.4", "598.4", "return of 598"),
    ],
)
def test_a_changed_number_changes_the_page(folder, file, old, new, told):
    path, before = folder / "some-controller" / file, words(folder)
    assert old in path.read_text() and told not in before
    path.write_text(path.read_text().replace(old, new, 1))
    assert told in words(folder)


def test_position_is_place_in_the_slice(folder):
    page = latent_figure(folder)
    bar, surface, actions = images(page)
    assert bar[0, 0] > bar[0, -1]  # darker is higher
    assert np.unravel_index(surface.argmin(), surface.shape) == (4, 3)  # b = −2 at the bottom, a = 1
    # The lower right cell; its last step, its first action on top.
    assert np.unravel_index(actions.argmin(), actions.shape) == (ACTIONS, 2 * HORIZON - 1)
    rings = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)
    assert len(set(rings)) == 1 and len(rings) == 2  # at the same place of both pictures
    scale_x, scale_y = (re.search(rf'data-{axis}="([^"]*)"', page)[1].split(",") for axis in "xy")
    for at, scale, value in zip(rings[0], (scale_x, scale_y), (0, 1), strict=True):
        low, high, first, last = map(float, scale)
        assert float(at) == pytest.approx(first + (value - low) / (high - low) * (last - first), abs=0.1)


def test_empty_without_files(tmp_path):
    assert latent_figure(tmp_path / "latent") == ""
