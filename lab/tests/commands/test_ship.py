"""`dcem ship`: weights of any experiment under a name, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dcem_lab import cli, pretrained
from dcem_lab.cartpole import grid, shipped
from dcem_lab.cartpole import train as cartpole
from dcem_lab.commands import exits
from dcem_lab.runs import Run
from dcem_lab.suite.trained import load
from toy.controlled import make_run
from toy.experiment import Config


def ship(*words: object) -> int:
    return cli.main(["ship", *map(str, words)])


@pytest.mark.parametrize("latent", [True, False])
def test_a_controller_ships_whole(
    latent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run, folder = make_run(tmp_path / "run", latent, moved=1.0), tmp_path / "weights"
    assert ship(run, "pendulum", "--folder", folder, "--snapshot", "last") == exits.DONE
    assert capsys.readouterr().out == f"{folder / 'pendulum.safetensors'}\n"
    read = pretrained.load
    monkeypatch.setattr(pretrained, "load", lambda name: read(name, folder))
    ours, theirs = load(run, "last"), load("pendulum")
    assert (theirs.task, theirs.action_repeat, theirs.planner) == ("Pendulum-v1", 2, ours.planner)
    assert (theirs.experiment, theirs.config, theirs.replay) == ("ppo", ours.config, None)
    assert theirs.description == ours.description
    for part, network in ours.networks.items():
        other = theirs.networks[part]
        if network is None or other is None:
            assert network is other is None
        else:
            assert all(map(torch.equal, network.state_dict().values(), other.state_dict().values()))


def test_a_cartpole_controller_ships_and_is_found_by_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cartpole.Config(**cartpole.PRESETS["tiny"], device="cpu")
    with Run(tmp_path / "run", config, tensorboard=False, bar=False, experiment="cartpole") as run:
        cartpole.run(config, run)
    assert ship(tmp_path / "run", "swing-up", "--folder", tmp_path) == exits.DONE
    mpc, expected = shipped.load("swing-up", tmp_path), shipped.find(tmp_path / "run")
    for ours, theirs in zip(mpc.decoder.parameters(), expected.decoder.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    monkeypatch.setattr(pretrained.describe, "__defaults__", (tmp_path,))
    assert shipped.is_one("swing-up") and not shipped.is_one("no-such-thing")
    assert ship(tmp_path / "run", "swing-up", "--folder", tmp_path, "--tau", 0.1) == exits.USAGE


def test_the_best_of_a_grid_ships_by_latent_dimension(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = grid.Config(**grid.PRESETS["tiny"], device="cpu")
    with Run(tmp_path / "run", config, tensorboard=False, bar=False, experiment="cartpole-grid") as run:
        grid.run(config, run)
    words = (tmp_path / "run", "pole", "--folder", tmp_path / "weights")
    assert ship(*words, "--tau", 0.1) == exits.DONE
    assert pretrained.available(tmp_path / "weights") == ["pole-2", "pole-3"]
    assert pretrained.describe("pole-2", tmp_path / "weights")["member"]["tau"] == 0.1
    assert ship(*words, "--tau", 7) == exits.USAGE
    assert "tau must be one of [1.0, 0.1], those of the run, got 7.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "A"], "name must be lower-case letters"),
        (["run", "../x"], "name must be lower-case letters"),
        (["run", "x", "--tau", "1"], "--tau must be left out for ppo"),
        (["toy", "x"], "RUN must be of agent, planet, embed, ppo, cartpole, cartpole-grid, got one of toy"),
        (["nothing", "x"], "cannot be read as the record of a run"),
    ],
)
def test_what_cannot_ship_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", latent=True)
    with Run(tmp_path / "toy", Config(), tensorboard=False, bar=False, experiment="toy"):
        pass
    assert ship(*words, "--folder", "weights") == exits.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "weights").exists()
