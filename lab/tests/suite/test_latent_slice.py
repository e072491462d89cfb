"""A slice of a latent action space: what is written is what the planner sees, where the slice says it is."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from dcem import Decoder
from dcem_lab.report.sources import read_rows
from dcem_lab.suite import latent_slice
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.latent_slice import directions, grid, latent_planner, play, points
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained

MOMENTS, FINE = (0, 7), 5


@pytest.fixture(scope="module")
def source() -> Trained:
    config = RSSMConfig(hidden=6, width=6, members=2, pessimism=1.5)
    planner = PlannerConfig(samples=8, elites=3, iterations=2, horizon=4, sigma=0.5, tau=1.0)
    torch.manual_seed(0)
    decoder = Decoder(latent_dim=3, horizon=4, action_dim=1, hidden=[8])
    return Trained("Pendulum-v1", None, planner, RSSM(3, 1, config), decoder)


@pytest.fixture(scope="module")
def episode(source):
    return play(source, latent_planner(source), seed=3)


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent_slice, "load", lambda name: source)
        return latent_slice.write("tiny", tmp_path_factory.mktemp("latent") / "tiny", 3, MOMENTS, FINE)


def test_plays_as_the_controller_does(source, episode):
    controller = source.controller()
    with closing(ParallelEnv(source.environment(), 1)) as envs:
        (played,) = controller.play(envs, [3])
    assert (played.length, played.total) == (len(episode.plans), pytest.approx(episode.total))


def test_directions_are_the_principal_ones():
    long, longer = torch.tensor([0.6, 0.8, 0.0]), torch.tensor([-0.8, 0.6, 0.0])
    plans = torch.randn(500, 1) * long + 3 * torch.randn(500, 1) * longer + 0.01 * torch.randn(500, 3) + 5
    two = directions(plans)
    torch.testing.assert_close(two @ two.T, torch.eye(2))
    # Up to a sign, which makes the largest number positive.
    torch.testing.assert_close(two, torch.stack([-longer, long]), atol=0.05, rtol=0)


def test_the_slice_goes_through_the_plan(episode):
    two, plan = directions(episode.plans), episode.plans[7]
    torch.testing.assert_close(points(plan, two, (plan @ two.T).unsqueeze(0))[0], plan)
    places = grid(2.0, 3)
    torch.testing.assert_close(points(plan, two, places) @ two.T, places)
    assert places[:2].tolist() == [[-2, -2], [-2, 0]]


def by_hand(source: Trained, state, z) -> float:
    """The members' rewards of every imagined step: Σ mean − 1.5 · standard deviation."""
    total, model = 0.0, source.model
    for action in source.decoder(z):
        state, _ = model.step(state, action)
        rewards = model.reward_head(state.reshape(2, 1, model.member_dim)).flatten()
        total += (rewards.mean() - 1.5 * rewards.std(correction=0)).item()
    return total


def test_the_surface_is_what_the_planner_sees(source, episode, folder):
    rows = read_rows(folder / "surface.csv")
    assert len(rows) == len(MOMENTS) * FINE**2
    sides = {float(row["a"]) for row in rows}
    assert (min(sides), max(sides)) == (-1.5, 1.5)  # three of the planner's first standard deviations
    two = directions(episode.plans)
    for row in (rows[3], rows[FINE**2 + 13]):
        moment, place = int(row["moment"]), torch.tensor([float(row["a"]), float(row["b"])])
        plan = episode.plans[moment]
        z = plan + (place[0] - plan @ two[0]) * two[0] + (place[1] - plan @ two[1]) * two[1]
        expected = by_hand(source, episode.states[moment], z)
        assert float(row["return"]) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_actions_are_decoded_there(source, episode, folder):
    rows = read_rows(folder / "actions.csv")
    assert len(rows) == len(MOMENTS) * 25 * 4
    row, plan, two = rows[-2], episode.plans[7], directions(episode.plans)
    assert [row[name] for name in ("moment", "a", "b", "t", "action")] == ["7", "1.2", "1.2", "2", "0"]
    decoded = source.decoder(points(plan, two, torch.tensor([[1.2, 1.2]])))
    assert float(row["value"]) == pytest.approx(decoded[0, 2, 0].item(), abs=1e-3)


def test_the_path_and_the_record(source, episode, folder):
    rows = read_rows(folder / "path.csv")
    assert len(rows) == 200
    place = (episode.plans[7] @ directions(episode.plans).T).tolist()
    assert [float(rows[7][name]) for name in ("a", "b")] == pytest.approx(place, abs=1e-3)
    planned = by_hand(source, episode.states[7], episode.plans[7])
    assert float(rows[7]["return"]) == pytest.approx(planned, rel=1e-3, abs=1e-4)
    record = json.loads((folder / "run.json").read_text())
    assert record["command"] == "python -m dcem_lab.suite.latent_slice tiny --seed 3"
    assert (record["seed"], record["length"], record["task"]) == (3, 200, "Pendulum-v1")
    assert 0 < record["share"] <= 1 and record["versions"]["torch"] == torch.__version__


def test_a_controller_without_a_decoder_has_none(source):
    with pytest.raises(ValueError, match="must have a decoder"):
        latent_planner(replace(source, decoder=None))


def test_what_has_no_slice_is_refused(source, tmp_path, monkeypatch):
    thin = replace(source, decoder=Decoder(latent_dim=1, horizon=4, action_dim=1, hidden=[8]))
    monkeypatch.setattr(latent_slice, "load", lambda name: thin)
    with pytest.raises(ValueError, match="latent_dim must be at least 2 for a slice, got 1"):
        latent_slice.write("thin", tmp_path / "thin")
    monkeypatch.setattr(latent_slice, "load", lambda name: source)
    with pytest.raises(ValueError, match=r"moments must be below the episode's 200 steps, got \(0, 200\)"):
        latent_slice.write("short", tmp_path / "short", moments=(0, 200))
    assert not any(tmp_path.iterdir())
