"""The film of two controllers, and the command that makes it."""

import importlib

import pytest
import torch

from dcem.control import closed_loop, rollout
from dcem.systems.cartpole import Cartpole
from dcem_lab import cli
from dcem_lab.cartpole import film as films
from dcem_lab.cartpole import train as cartpole
from dcem_lab.cartpole.driving import STEPS
from dcem_lab.cartpole.film import HOLD, carry_out, film, hanging_states, replan
from dcem_lab.cartpole.shipped import drives, find, is_one
from dcem_lab.runs import Run

imageio = pytest.importorskip("imageio")


def test_a_side_shows_what_its_plan_does():
    mpc = find("cartpole-2")
    states = hanging_states(3, torch.Generator().manual_seed(0))
    assert states.shape == (3, 5) and (states[:, 2] < 0).all()
    side = carry_out("embedded", mpc, states, torch.Generator().manual_seed(1))
    assert side.title.endswith("1,000 trajectories per plan")
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
    assert "DCEM in 2 latent dimensions, 1,000 trajectories per plan: mean cost -" in said
    assert str(tmp_path / "a.mp4") in said
    assert cli.main(["play", "cartpole-5"]) == 2
    assert "there are no weights 'cartpole-5'" in capsys.readouterr().err


def run_of(config, folder):
    with Run(folder, config, tensorboard=False, experiment="cartpole") as run:
        cartpole.run(config, run)
    return folder


@pytest.mark.slow
def test_a_controller_that_drives_is_filmed_replanning_beside_the_papers(tmp_path, monkeypatch):
    settings = cartpole.SMALL | {"updates": 1, "validation_states": 1}
    folder = run_of(cartpole.Config(**settings, fresh=0.5, conditioned=True, device="cpu"), tmp_path / "run")
    assert drives(folder) and not drives("cartpole-8")
    monkeypatch.setattr(films, "STRONG", "expert-100-10-30")  # faster
    path, sides = film(folder, tmp_path / "a.mp4", starts=1)
    assert [side.title.split("\n")[1].split()[0] for side in sides] == ["1,000", "1,000", "3,000"]
    assert all(side.states.shape == (61, 1, 5) and side.costs.shape == (61, 1) for side in sides)
    with imageio.get_reader(path) as reader:
        assert reader.count_frames() == 61 + HOLD


def test_replanning_is_the_closed_loop():
    mpc, states = find("cartpole-2"), hanging_states(2, torch.Generator().manual_seed(0))
    side = replan("embedded", mpc, states, torch.Generator().manual_seed(1))
    path = closed_loop(mpc, states, STEPS, generator=torch.Generator().manual_seed(1))
    assert torch.equal(side.states, path.states) and torch.equal(side.actions, path.actions[..., 0])
    torch.testing.assert_close(side.costs[-1], path.costs.sum(0))


def test_a_run_can_be_filmed(tmp_path):
    run_of(cartpole.Config(**cartpole.PRESETS["tiny"], device="cpu"), tmp_path)
    assert is_one(tmp_path) and not is_one("cheetah-run") and is_one("cartpole-16")
    assert find(tmp_path).decoder.settings["hidden"] == [16, 16]
