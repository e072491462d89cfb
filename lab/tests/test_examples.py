"""Every example runs, on a small budget, and leaves its picture."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import dcem

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["minimize_2d", "learn_the_objective", "layer", "imitation", "pendulum_value", "obstacles"]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_it_leaves_its_picture_and_says_where(name, tmp_path, capsys):
    path = load(name).main(steps=4, folder=tmp_path / "new" / "folder")
    assert path.parent == tmp_path / "new" / "folder"
    assert str(path) in capsys.readouterr().out
    with Image.open(path) as picture:
        picture.load()
        assert min(picture.size) > 200
        colours = picture.convert("RGB").getcolors(maxcolors=2**24)
    assert len(colours) > 50, "an empty picture"


def test_the_gif_moves(tmp_path):
    with Image.open(load("learn_the_objective").main(steps=6, folder=tmp_path)) as gif:
        assert gif.n_frames == 3


@pytest.mark.parametrize("name", NAMES)
def test_it_stays_readable_in_five_minutes(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 80


def test_the_search_finds_the_lowest_of_many_minima():
    example = load("minimize_2d")
    assert (example.solve(steps=8).x - example.LOWEST).abs().max() < 0.05


def test_the_search_is_needed():
    """From the same start, gradient descent ends in another minimum."""
    example = load("minimize_2d")
    descent = dcem.GradientDescent(n_iters=200, learning_rate=0.02)
    assert dcem.minimize(example.f, descent, example.START).cost > 1


def test_imitation_comes_near_the_truth():
    example = load("imitation")
    assert ((example.recover(steps=40)[-1] / example.TRUTH).log().abs() < 0.12).all()
