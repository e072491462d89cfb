"""What is measured where the walker stays down, with a tiny controller that never gets up."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
import torch

pytest.importorskip("dm_control")

from dcem import Decoder
from dcem_lab.report.sources import read_rows
from dcem_lab.suite import decoder_when_down, evaluate, plans_when_down, taking_over
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.down_numbers import getting_up_rows, promise_rows
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.where_down import begin, play

PLANNER = PlannerConfig(samples=10, elites=2, iterations=2, horizon=3, tau=0.5)
FEW = {"samples": 20, "elites": 4}


def tiny() -> Trained:
    generator = torch.Generator().manual_seed(0)
    model = RSSM(24, 6, RSSMConfig(hidden=8, width=8), generator).requires_grad_(False)
    torch.manual_seed(0)
    decoder = Decoder(latent_dim=2, horizon=3, action_dim=6, hidden=(16,)).requires_grad_(False)
    return Trained("walker-walk", None, PLANNER, model, decoder)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "load", lambda *_, **__: tiny())
    monkeypatch.setitem(plans_when_down.SEARCHES, "latent, 10,000 trajectories", FEW)
    monkeypatch.setitem(plans_when_down.SEARCHES, "actions, 10,000 trajectories", FEW)
    totals = {"3": 20.0, "4": 900.0, "5": 30.0, "6": 900.0, "7": 249.0, "8": 10.0}
    rows = "".join(f"walker-walk,latent-dcem,a,1,1,{seed},{total}\n" for seed, total in totals.items())
    (tmp_path / "dmc").mkdir()
    head = "task,controller,run,samples,iterations,episode_seed,total\n"
    (tmp_path / "dmc/evaluations.csv").write_text(head + rows)
    return tmp_path


def test_promises_are_written_for_every_search_and_horizon(results):
    with pytest.raises(ValueError, match="controller must be one with returns below 250, got full-cem"):
        plans_when_down.write("tiny", "full-cem", results, 2, 4, [3])
    folder = plans_when_down.write("tiny", "latent-dcem", results, 2, 4, [3, 5])
    rows = read_rows(folder / "tiny.csv")
    assert len(rows) == 2 * 4 * 2
    assert {row["episode_seed"] for row in rows} == {"3", "5"}
    assert all(float(row["refined"]) >= float(row["promise"]) for row in rows)
    assert "--horizons 3 5" in json.loads((folder / "run.json").read_text())["command"]


def test_the_promise_is_the_models_and_short_plans_are_repeated():
    trained = tiny()
    states = trained.model.initial(torch.randn(2, 24))
    found = plans_when_down.plans(trained, states, 7)["latent"]
    assert torch.equal(found[:, 3:6], found[:, :3])
    state, total = states, torch.zeros(2)
    for action in found.unbind(dim=1):
        state, cost = trained.model.step(state, action)
        total -= cost
    torch.testing.assert_close(plans_when_down.promised(trained, states, found, steps=0)[0], total)


def test_a_decoder_learns_what_the_model_promises():
    trained = decoder_when_down.longer(tiny(), points=2)
    assert trained.decoder is not None
    before = [x.clone() for x in trained.decoder.parameters()]
    states = trained.model.initial(torch.randn(30, 24))
    lines = list(decoder_when_down.learn(trained, states[:20], states[20:], 45))
    assert [line[0] for line in lines] == [20, 40, 45]
    assert lines[-1][1] > lines[0][1]
    after = list(trained.decoder.parameters())
    assert not any(map(torch.equal, before, after))
    assert not any(x.requires_grad for x in after)


def test_trainings_are_written_with_rewards_before_and_after(results, monkeypatch):
    monkeypatch.setattr(decoder_when_down, "LOW", 0.05)  # a controller that never walks has no other states
    folder = decoder_when_down.write("tiny", "latent-dcem", results, 2, 2, 30, [1, 2])
    rows = read_rows(folder / "tiny.csv")
    assert {(row["latent_points"], row["updates"]) for row in rows} == {
        ("1", "0"),
        ("1", "1"),
        ("3", "0"),
        ("3", "2"),
    }
    assert {row["episode_seed"] for row in rows} == {"3", "5"}
    assert [row["updates"] for row in read_rows(folder / "tiny-training.csv")] == ["1", "2"]


def test_tables_count_states_that_are_down_and_walkers_that_are_up(tmp_path):
    assert promise_rows(tmp_path) == getting_up_rows(tmp_path) == []
    down, up = tmp_path / "dmc/down", tmp_path / "dmc/getting-up"
    down.mkdir(parents=True)
    up.mkdir()
    (down / "walker-walk-dcem.csv").write_text(
        "episode_seed,decision,reward,horizon,search,promise,refined\n"
        "1,9,0.4,12,latent,5,6\n2,9,1.9,12,latent,23,24\n3,9,0.2,12,latent,6,7\n"
        "1,9,0.4,24,latent,9,9\n3,9,0.2,24,latent,9,9\n"
    )
    assert promise_rows(tmp_path) == [
        {"search": "latent", "12 actions": "5.5 (6.5)", "24 actions": "9.0 (9.0)", "states": "2"}
    ]
    (up / "walker-walk-dcem.csv").write_text(
        "latent_points,updates,episode_seed,decisions,reward\n3,0,1,9,0.4\n3,0,2,9,1.9\n3,40,1,9,1.7\n3,40,2,9,2\n"
    )
    (up / "walker-walk-dcem-training.csv").write_text(
        "latent_points,updates,promise_down,promise_up\n3,20,0.5,1.8\n3,40,0.9,1.9\n"
    )
    before, after = getting_up_rows(tmp_path)
    assert list(before.values()) == ["3", "0", "0.50", "1.80", "1 of 2"]
    assert list(after.values()) == ["3", "40", "0.90", "1.90", "2 of 2"]


def test_who_takes_over_continues_the_same_episodes(results, monkeypatch):
    monkeypatch.setattr(taking_over, "SEARCH", replace(taking_over.SEARCH, n_samples=4, n_elite=2, n_iters=1))
    folder = taking_over.write("tiny", "latent-dcem", results, 2, 5, 4, 1)
    rows = read_rows(folder / "tiny.csv")
    rewards: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        rewards.setdefault((row["decision"], row["controller"], row["episode_seed"]), []).append(
            float(row["reward"])
        )
    assert {who for _, who, _ in rewards} == {
        *taking_over.takers("tiny", 1),
        "search around latent DCEM",
        "search around agent with a value",
    }
    assert {key[1:] for key in rewards if "10,000" in key[1]} == {("CEM, 10,000 trajectories", "3")}
    for seed in ("3", "5"):
        best = rewards["5", "search around latent DCEM", seed]
        assert sum(best) >= sum(rewards["5", "latent DCEM", seed][:3])


def test_a_moment_is_continued_exactly():
    trained = tiny()
    start = begin(trained, [3, 4])
    whole = play(trained, start, 6)
    with closing(trained.environment()()) as env:
        for row in (0, 1):
            state = start.simulators["envs"][str(row)]
            true = taking_over.simulated(env, state, whole.actions[:, row])
            assert torch.equal(true, whole.rewards[:, row])
    first = play(trained, start, 4).of([1])
    assert first.seeds == [4]
    torch.testing.assert_close(first.states(trained.model), whole.of([1]).states(trained.model)[:5])
    with closing(trained.environment()()) as env:
        true = taking_over.simulated(env, first.simulators["envs"]["0"], whole.actions[4:, 1])
    assert torch.equal(true, whole.rewards[4:, 1])
