"""The film of two controllers, and the command that makes it."""

import importlib

import pytest
import torch

from dcem.control import rollout
from dcem.systems.cartpole import Cartpole
from dcem_lab import cli
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.film import HOLD, carry_out, film, hanging_states
from dcem_lab.cartpole.shipped import find, is_one
from dcem_lab.runs import Run

imageio = pytest.importorskip("imageio")


def test_a_side_shows_what_its_plan_does():
    mpc = find("cartpole-2")
    states = hanging_states(3, torch.Generator().manual_seed(0))
    assert states.shape == (3, 5) and (states[:, 2] < 0).all()
    side = carry_out("embedded", mpc, states, torch.Generator().manual_seed(1))
    assert side.title.endswith("1,000 sampled trajectories")
    assert torch.equal(side.states[0], states) and not side.costs[0].any()
    total = rollout(Cartpole(), states, side.actions.mT.unsqueeze(-1))
    torch.testing.assert_close(side.costs[-1], total, rtol=1e-4, atol=1e-4)


def test_the_film_has_a_frame_a_step(tmp_path):
    path, sides = film("cartpole", tmp_path / "new" / "a.mp4", seed=0, starts=1)
    assert path == tmp_path / "new" / "a.mp4"
    assert "8 latent dimensions" in sides[0].title and "10,000" in sides[1].title
    with imageio.get_reader(path) as reader:
        assert reader.count_frames() == 21 + HOLD
        assert (reader.get_data(2) != reader.get_data(15)).any()


def test_without_an_encoder_it_is_a_gif(tmp_path, monkeypatch):
    whole = importlib.import_module

    def without_ffmpeg(name, *rest):
        if name == "imageio_ffmpeg":
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without_ffmpeg)
    path, _ = film("cartpole-2", tmp_path / "a.mp4", starts=1)
    assert path == tmp_path / "a.gif"
    image = pytest.importorskip("PIL.Image")
    with image.open(path) as gif:
        assert gif.n_frames >= 21


def test_the_command_says_what_it_shows_and_where(tmp_path, capsys):
    assert cli.main(["play", "cartpole-2", "--output", str(tmp_path / "a.mp4"), "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "embedded DCEM, 2 latent dimensions, 1,000 sampled trajectories: cost -" in said
    assert str(tmp_path / "a.mp4") in said
    assert cli.main(["play", "cartpole-5"]) == 2
    assert "there are no weights 'cartpole-5'" in capsys.readouterr().err
    assert cli.main(["eval", "cartpole-2"]) == 2
    assert "must be a controller that acts step by step" in capsys.readouterr().err


def test_a_run_can_be_filmed(tmp_path):
    config = cartpole.Config(**cartpole.PRESETS["tiny"], device="cpu")
    with Run(tmp_path, config, tensorboard=False, experiment="cartpole") as run:
        cartpole.run(config, run)
    assert is_one(tmp_path) and not is_one("cheetah-run") and is_one("cartpole-16")
    assert find(tmp_path).decoder.settings["hidden"] == [16, 16]
