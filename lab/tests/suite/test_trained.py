"""Which weights of a controller are kept, and what a folder from elsewhere may ask for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcem_lab import cli
from dcem_lab.commands import exits
from dcem_lab.runs import Checkpoints, load_checkpoint
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained, _model, load
from toy.controlled import make_run


@pytest.fixture
def trained() -> Trained:
    return Trained("task", None, PlannerConfig(), RSSM(2, 1, RSSMConfig(hidden=4, width=4)))


def test_a_score_of_nan_is_never_the_best(trained: Trained) -> None:
    assert not trained.keep_if_best(math.nan)
    assert (trained.state_dict()["best"], trained.score) == (None, -math.inf)
    assert trained.keep_if_best(1.0)
    assert not trained.keep_if_best(math.nan)
    assert trained.score == 1.0


@pytest.mark.parametrize("memory", [True, False])
def test_a_models_sizes_are_read_off_its_weights(memory: bool) -> None:
    model = RSSM(5, 2, RSSMConfig(hidden=4, width=4, memory=memory, angles=(1,)))
    again = _model(model.config, model.state_dict())
    assert (again.obs_dim, again.action_dim) == (5, 2)


Forge = Callable[..., Path]


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """A run folder, sealed as it should be, whose controller is described otherwise."""

    def make(part: str, *path: Any, value: Any) -> Path:
        folder = make_run(tmp_path / "run", latent=True)
        checkpoint = load_checkpoint(folder)
        saved: Any = checkpoint.tree["objects"]["trained"]
        for name in (part, *path[:-1]) if path else ():
            saved = saved[name]
        saved[path[-1] if path else part] = value
        Checkpoints(folder / "checkpoints").save(checkpoint.step + 1, checkpoint.tree)
        return folder

    return make


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("samples", 10**9, "planner.samples must be at most 100,000 in a file"),
        ("iterations", 10**9, "planner.iterations must be at most 1,000 in a file"),
        ("horizon", 10**9, "planner.horizon must be at most 1,000 in a file"),
    ],
)
def test_a_file_cannot_ask_for_plans_without_end(forge: Forge, name: str, value: int, message: str) -> None:
    folder = forge("pieces", "planner", name, value=value)
    with pytest.raises(ValueError, match=message):
        load(folder)
    assert getattr(load(folder, full_space=name == "horizon", **{name: 30}).planner, name) == 30


def test_each_within_its_limit_is_too_much_together(forge: Forge) -> None:
    folder = forge("pieces", "planner", value={"samples": 10**5, "elites": 1, "iterations": 10**3,
                                               "horizon": 3, "tau": 1.0})  # fmt: skip
    with pytest.raises(ValueError, match="samples × iterations × horizon × latent_points must be at most"):
        load(folder)


def test_the_owner_may_plan_as_much_as_they_like(forge: Forge) -> None:
    folder = forge("pieces", "planner", "samples", value=10**9)
    assert load(folder, samples=10**7).planner.samples == 10**7
    assert load(folder, samples=10**9).planner.samples == 10**9


def test_without_its_decoder_it_plans_as_much_as_full_cem(tmp_path: Path) -> None:
    planner = load(make_run(tmp_path / "run", latent=True), full_space=True, elites=200).planner
    assert planner == PlannerConfig(elites=200, horizon=3)  # though it has 30 samples with its decoder


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["pieces", "planner", "samples"], "many", "planner.samples must be int, got 'many'"),
        (["pieces", "planner", "samples"], 3.0, "planner.samples must be int, got 3.0"),
        (["pieces", "planner", "tau"], "soft", "planner.tau must be float, got 'soft'"),
        (["pieces", "planner", "dtype"], 16, "planner.dtype must be str, got 16"),
        (["pieces", "planner"], [1, 2], "planner must be an object of JSON"),
        (["pieces", "planner", "colour"], 1, "settings of planner must be among samples"),
        (["pieces", "model", "hidden"], None, "model.hidden must be int, got None"),
        (["pieces", "model", "angles"], ["x"], "model.angles must be tuple"),
        (["pieces", "model", "members"], True, "model.members must be int, got True"),
        (["pieces", "decoder", "latent_dim"], "2", "decoder.latent_dim must be int, got '2'"),
        (["pieces", "decoder", "hidden"], 8, "decoder.hidden must be tuple"),
        (["pieces", "decoder"], 8, "decoder must be an object of JSON"),
        (["pieces", "decoder", "action_dim"], 3, "decoder.action_dim must be the model's 1, got 3"),
        (["pieces", "action_repeat"], 10**9, "a stored action_repeat must be null or from 1 to 1,000"),
        (["pieces", "action_repeat"], "2", "a stored action_repeat must be null or from 1 to 1,000"),
        (["pieces", "task"], 3, "a stored task must be a name without a module, got 3"),
        (["pieces"], {}, "must hold a whole controller"),
        (["best"], {}, "must hold a whole controller"),
        (["best"], [], "must hold a whole controller"),
    ],
)
def test_what_is_of_another_type_is_refused_in_a_sentence(
    forge: Forge, path: list[str], value: object, message: str, capsys: pytest.CaptureFixture
) -> None:
    folder = forge(*path, value=value)
    assert cli.main(["eval", str(folder), "--episodes", "1"]) == exits.USAGE
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
