"""Agents beside published ones: at the same steps, over the seeds that came so far, over all tasks."""

from pathlib import Path

import numpy as np
import pytest

import made_up
from dcem_lab.suite.beside import (
    aggregate_rows,
    beside_rows,
    peer_sources,
    ranked,
    read_peers,
    returns_of,
)
from dcem_lab.suite.numbers import read_trainings, training_rows


@pytest.fixture
def results(tmp_path):
    made_up.write_questions(tmp_path)
    made_up.write_agents(tmp_path)
    return tmp_path


@pytest.fixture
def cheetah(results):
    return next(one for one in read_trainings(results / "agent") if one.name == "cheetah-run-default")


def test_the_record_says_which_task_a_folder_is_of(results):
    found = {(one.task, one.preset, len(one.curves), one.aside) for one in read_trainings(results / "agent")}
    assert found == {
        ("cheetah-run", "default", 2, False),
        ("cheetah-run", "two-hot", 1, True),
        ("hopper-hop", "default", 3, False),
    }


def test_a_task_whose_name_goes_on_is_another_task(tmp_path):
    """cartpole-swingup_sparse is no variant of cartpole-swingup."""
    for task in ("walker-walk", "walker-walk_sparse"):
        made_up.write_rows(tmp_path / task / "seed0" / "curve.csv", ["env_steps"], [[1]])
        made_up.write_record(tmp_path / task / "seed0", config={"task": task})
    assert [(one.task, one.preset) for one in read_trainings(tmp_path)] == [
        ("walker-walk", "default"),
        ("walker-walk_sparse", "default"),
    ]


def test_a_run_that_was_cut_off_is_as_long_as_its_curve(tmp_path):
    config = {"task": "walker-walk", "loop": {"env_steps": 1000}}
    record = {"status": "running", "step": 0, "steps": 500, "wall_seconds": 4.7, "config": config}
    columns = ["env_steps", "seconds", "eval_mean", "eval_median"]
    for name, facts in (("cut", record), ("ended", record | {"status": "interrupted", "step": 250})):
        folder = tmp_path / f"walker-walk-{name}" / "seed0"
        made_up.write_rows(folder / "curve.csv", columns, [[100, 20, 1, 1], [700, 80, 2, 2]])
        made_up.write_record(folder, **facts)
    cut, ended = training_rows(read_trainings(tmp_path))
    assert (cut["of its budget"], cut["wall time"]) == ("70%", "1 min 20 s")
    assert (ended["of its budget"], ended["wall time"]) == ("50%", "5 s")


def test_a_seed_that_did_not_come_so_far_is_left_out_of_the_mean(cheetah):
    short = {name: values[:4] for name, values in cheetah.curves[0].items()}  # to 200,048
    found = returns_of([short, cheetah.curves[1]], [200_000, 400_000, 1_000_000])
    assert {at: returns.tolist() for at, returns in found.items()} == {200_000: [360, 280], 400_000: [560]}


def test_our_seeds_and_their_mean_stand_above_the_published_agents(results, cheetah):
    rows = beside_rows([cheetah], read_peers(results), (100_000, 500_000), seed_by_seed=True)
    assert [list(row.values()) for row in rows] == [
        ["ours, seed 0", "", "180", "900"],
        ["ours, seed 1", "", "140", "700"],
        ["ours", "2", "160", "800"],
        ["TD-MPC2", "3", "519", "758"],
        ["A", "2", "305", "820"],
        ["B", "their mean", "200", "600"],
        ["C", "2", "2", "4"],
    ]


def test_published_agents_are_ranked_where_they_have_the_task_and_the_steps(results):
    assert ranked("hopper-hop", 500_000, read_peers(results)) == {"B": 450, "TD-MPC2": 210}
    assert ranked("hopper-hop", 700_000, read_peers(results)) == {}


def test_all_tasks_together(results):
    trainings = [one for one in read_trainings(results / "agent") if not one.aside]
    found = aggregate_rows(trainings, read_peers(results))
    cells = {name: {row["agent"]: row["500,000"] for row in rows} for name, rows in found.items()}
    means, gaps = cells["interquartile mean"], cells["optimality gap"]
    # 300, 400, 500, 700, 900: a quarter of five is one at each end.
    assert means["ours"].startswith("533 [") and gaps["ours"].startswith("440 [")
    assert means["TD-MPC2"].startswith("486 [")  # of 200, 210, 220, 756, 758, 760
    assert means["B"] == "525" and gaps["B"] == "475"  # means alone have no interval
    assert means["A"] == means["C"] == "–"  # they lack the hopper
    assert list(found["interquartile mean"][0]) == [
        "agent",
        "100,000",
        "200,000",
        "300,000",
        "400,000",
        "500,000",
    ]


def test_one_task_is_no_aggregate(results, cheetah):
    assert aggregate_rows([cheetah], read_peers(results)) == {}


def test_without_a_file_there_are_no_published_agents(tmp_path, cheetah):
    assert read_peers(tmp_path / "nowhere") == {}
    assert len(beside_rows([cheetah], {})) == 1


def test_every_published_return_is_one_of_the_control_suite_and_says_where_it_is_from():
    results = Path(__file__).parents[2] / "results"
    peers = read_peers(results)
    assert [row["agent"] for row in peer_sources(results)] == list(peers)
    every = np.concatenate(
        [x for tasks in peers.values() for found in tasks.values() for x in found.values()]
    )
    assert len(every) > 1000 and every.min() >= 0 and every.max() <= 1000
