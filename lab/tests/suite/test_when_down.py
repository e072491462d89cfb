"""What is measured where the walker stays down, with a tiny controller that never gets up."""

import json
from contextlib import closing
from dataclasses import replace
from itertools import islice

import pytest
import torch

pytest.importorskip("dm_control")

from dcem import Decoder
from dcem_lab.report.sources import read_rows
from dcem_lab.suite import decoder_when_down, evaluate, plans_when_down, taking_over
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.down_numbers import getting_up_rows, promise_rows, taking_over_rows
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.trained import Trained
from dcem_lab.suite.walker_starts import angles
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


def test_a_decoder_learns_what_the_model_promises(monkeypatch):
    monkeypatch.setattr(decoder_when_down, "LENGTH", 10)
    trained = replace(tiny(), planner=replace(PLANNER, latent_points=2))
    assert trained.decoder is not None
    before = [x.clone() for x in trained.decoder.parameters()]
    lines = list(decoder_when_down.learn(trained, 45))
    assert [line[0] for line in lines] == [20, 40, 45]
    assert lines[-1][1] > lines[0][1]
    after = list(trained.decoder.parameters())
    assert not any(map(torch.equal, before, after))
    assert not any(x.requires_grad for x in after)


def test_it_learns_in_other_episodes_most_of_which_begin_backwards():
    seeds = [*islice(decoder_when_down.starts(), 40)]
    assert seeds[0] >= decoder_when_down.FIRST
    assert len({*seeds}) == 40
    assert 20 < sum(angle <= 0 for angle in angles(seeds)) < 40


def test_trainings_are_written_with_rewards_before_and_after(results, tmp_path):
    folder = decoder_when_down.write("tiny", "latent-dcem", results, 2, 2, 2, 1, 3, tmp_path / "weights")
    rows = read_rows(folder / "tiny.csv")
    found = {(row["steps"], row["start"], row["episode_seed"]) for row in rows}
    lost = {(steps, "lost", seed) for steps in "02" for seed in "35"}
    assert found == {*lost, ("2", "won", "4")}
    assert [row["steps"] for row in read_rows(folder / "tiny-training.csv")] == ["2"]
    assert (tmp_path / "weights/tiny-2.safetensors").exists()


def test_tables_count_states_that_are_down_and_walkers_that_are_up(tmp_path):
    assert promise_rows(tmp_path) == getting_up_rows(tmp_path) == []
    down, up = tmp_path / "dmc/down", tmp_path / "dmc/getting-up/points-2-steps-40"
    down.mkdir(parents=True)
    up.mkdir(parents=True)
    (down / "walker-walk-dcem.csv").write_text(
        "episode_seed,decision,reward,horizon,search,promise,refined\n"
        "1,9,0.4,12,latent,5,6\n2,9,1.9,12,latent,23,24\n3,9,0.2,12,latent,6,7\n"
        "1,9,0.4,24,latent,9,9\n3,9,0.2,24,latent,9,9\n"
    )
    assert promise_rows(tmp_path) == [
        {"search": "latent", "12 actions": "5.5 (6.5)", "24 actions": "9.0 (9.0)", "states": "2"}
    ]
    (up / "walker-walk-dcem.csv").write_text(
        "latent_points,steps,start,episode_seed,decisions,reward\n"
        "2,40,lost,1,9,1.7\n2,40,lost,2,9,2\n2,40,won,4,9,1.9\n2,0,lost,1,9,0.4\n2,0,lost,2,9,1.9\n"
    )
    after, before = getting_up_rows(tmp_path)
    assert list(after.values()) == ["2", "40", "9", "2 of 2", "1 of 1"]
    assert list(before.values()) == ["2", "0", "9", "1 of 2", "–"]


def test_who_takes_over_continues_the_same_episodes(results, monkeypatch):
    monkeypatch.setattr(taking_over, "SEARCH", replace(taking_over.SEARCH, n_samples=4, n_elite=2, n_iters=1))
    folder = taking_over.write("tiny", "latent-dcem", results, 2, 5, 4)
    rows = read_rows(folder / "tiny.csv")
    rewards: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        rewards.setdefault((row["decision"], row["controller"], row["episode_seed"]), []).append(
            float(row["reward"])
        )
    assert {who for _, who, _ in rewards} == {
        *taking_over.TAKERS,
        "search around latent DCEM",
        "search around agent with a value",
    }
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


def test_the_table_says_when_getting_up_pays(tmp_path):
    assert taking_over_rows(tmp_path) == []
    folder = tmp_path / "dmc/taking-over"
    folder.mkdir(parents=True)
    rewards = {
        ("latent DCEM", "1"): [0.5] * 12,
        ("latent DCEM", "2"): [0.5] * 12,
        ("slow", "1"): [0.0] * 6 + [2.0] * 6,  # 4 against 4 after 8 decisions
        ("slow", "2"): [0.0] * 12,
        ("at once", "1"): [1.0] * 12,
        ("short", "2"): [0.6] * 3,
    }
    lines = [
        f"100,{who},{seed},{t},{reward},0.25"
        for (who, seed), numbers in rewards.items()
        for t, reward in enumerate(numbers, 1)
    ]
    header = "decision,controller,episode_seed,later,reward,promise"
    (folder / "walker-walk-dcem.csv").write_text("\n".join([header, *lines]) + "\n")
    itself, slow, at_once, short = taking_over_rows(tmp_path)
    assert list(itself.values()) == ["100", "latent DCEM", "2", "6.0 (3.0)", "–", "–", "–", "–"]
    assert (slow["12 decisions"], slow["ahead for good from"]) == ("6.0 (3.0)", "9, 9, 9 (1 of 2)")
    assert at_once["ahead for good from"] == "1, 1, 1 (1 of 1)"
    assert (short["12 decisions"], short["ahead for good from"]) == ("–", "1, 1, 1 (1 of 1)")
