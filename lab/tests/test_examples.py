"""Every example runs, on a small budget, and leaves its picture."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import dcem
from dcem.systems import Cartpole

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ["minimize_2d", "learn_the_objective", "layer", "imitation", "pendulum_value", "obstacles"]
LONG = ["learned_optimiser", "meta_learning"]


def load(name: str, folder: Path = EXAMPLES) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SHORT + LONG)
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


@pytest.mark.parametrize("name", SHORT + LONG)
def test_it_stays_readable_in_five_minutes(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= (80 if name in SHORT else 115)


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


def test_a_short_plan_with_its_value_beats_one_without():
    """Learned for a moment, the value tells at least that up is better than down."""
    example = load("pendulum_value")
    value = example.learn(40, torch.manual_seed(0))
    up, down = value(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])).tolist()
    assert up > down + 10


def test_every_setting_of_the_search_is_learned():
    example = load("learned_optimiser")
    mpc = example.learner()
    before = {name: value.detach().clone() for name, value in mpc.named_parameters()}
    curve = example.learn(mpc, steps=2)
    assert [step for step, _ in curve] == [0, 1, 2]
    assert len(before) == 5
    for name, value in mpc.named_parameters():
        moved = (value != before[name]).sum()
        assert moved >= value.numel() - ("widen" in name), name  # nothing is sampled after the last widening


@pytest.mark.slow
def test_learned_settings_reach_the_cost_of_full_cem_with_a_tenth_of_its_trajectories():
    example = load("learned_optimiser")
    mpc = example.learner()
    example.learn(mpc, steps=200)
    states = Cartpole.initial_states(200, generator=torch.Generator().manual_seed(11))  # not those it reports
    with torch.no_grad():
        learned, full = (
            planner(states, generator=torch.Generator().manual_seed(12)).cost.mean()
            for planner in (mpc, example.cem(1000, 100))
        )
    assert learned < full


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DCEM", "DCEM with learned settings"])
def test_the_meta_learner_learns_through_the_search(name):
    """Sines have a mean square of 4 and more: the network explains most of it."""
    assert load("meta_learning").train(name, steps=500, seed=0)[-1][1] < 1.0


@pytest.mark.parametrize("name", ["gradient steps", "DCEM", "DCEM with learned settings"])
def test_the_context_is_fitted_to_the_points(name):
    """Beside z = 0, on the points it was fitted to, before anything is learned."""
    example = load("meta_learning")
    generator = torch.manual_seed(0)
    model = example.Regressor(example.SOLVERS[name]())
    points, _ = example.sines(50, 10, generator)
    fitted = model.error(model.adapt(points, generator=generator), *points)
    assert (fitted < model.error(torch.zeros(50, example.CONTEXT), *points)).float().mean() > 0.9


def test_the_meta_learners_numbers_are_written_for_every_seed(tmp_path):
    load("meta_learning").main(steps=2, folder=tmp_path, seeds=2)
    rows = (tmp_path / "meta_learning.csv").read_text().splitlines()
    assert rows[0] == "solver,seed,step,error"
    assert [row.split(",")[:3] for row in rows[1:]] == [
        [name, str(seed), str(step)]
        for name in ("gradient steps", "DCEM", "DCEM with learned settings")
        for seed in range(2)
        for step in (1, 2)
    ]


def test_the_meta_learners_table_has_a_record_of_commit_and_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", sys.path[:])  # which the script extends
    benchmark = load("run", EXAMPLES.parent / "benchmarks" / "meta_learning")
    benchmark.main(["--steps", "1", "--seeds", "1", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "run.json").read_text())
    assert record.keys() >= {"date", "cpu", "cores", "threads", "commit", "torch", "steps"}
    assert (tmp_path / "meta_learning.csv").exists()
