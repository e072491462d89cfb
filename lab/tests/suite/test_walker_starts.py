"""How the walker's episodes begin: the angles are the torso's, and stand beside the right returns."""

import json
import math
from itertools import pairwise

import pytest

pytest.importorskip("dm_control")

from dcem_lab.report.sources import read_rows
from dcem_lab.suite import walker_starts
from dcem_lab.suite.envs.dmc import make_env
from dcem_lab.suite.walker_starts import start_rows

EVALUATIONS = "task,controller,run,samples,iterations,episode_seed,total\n"


def test_angles_are_those_of_the_torso():
    env = make_env("walker-walk")
    seeds = range(5)
    found = list(walker_starts.angles(seeds))
    assert all(abs(a - b) > 1 for a, b in pairwise(found))
    for seed, angle in zip(seeds, found, strict=True):
        env.reset(seed=seed)
        turned = math.degrees(env._suite.physics.named.data.qpos["rooty"][0])
        assert angle == pytest.approx((turned + 180) % 360 - 180, abs=0.01)
    env.close()


def test_the_starts_of_every_evaluated_episode_are_written(tmp_path):
    (tmp_path / "dmc").mkdir()
    (tmp_path / "dmc/evaluations.csv").write_text(EVALUATIONS + "cheetah-run,full-cem,c,1,1,99,0\n")
    with pytest.raises(ValueError, match=r"evaluations\.csv must have episodes of walker-walk, got none"):
        walker_starts.write(tmp_path)
    rows = "".join(f"walker-walk,{who},a,1,1,{seed},0\n" for who, seed in [("a", 7), ("b", 7), ("b", 3)])
    with (tmp_path / "dmc/evaluations.csv").open("a") as table:
        table.write(rows)
    folder = walker_starts.write(tmp_path)
    assert [row["episode_seed"] for row in read_rows(folder / "walker-walk.csv")] == ["3", "7"]
    assert json.loads((folder / "run.json").read_text())["command"].endswith("walker_starts")


def test_episodes_that_stay_down_are_counted_by_pose(tmp_path):
    assert start_rows(tmp_path) == []
    (tmp_path / "dmc/starts").mkdir(parents=True)
    angles = {"1": -180.0, "2": -90.0, "3": -89.9, "4": 0.1, "5": 180.0}
    starts = "".join(f"{seed},{angle}\n" for seed, angle in angles.items())
    (tmp_path / "dmc/starts/walker-walk.csv").write_text("episode_seed,angle\n" + starts)
    totals = {"1": 249.0, "2": 250.0, "3": 20.0, "4": 900.0, "5": 1.0, "6": 5.0}  # of 6 the start is unknown
    rows = "".join(f"walker-walk,latent-dcem,a,1,1,{seed},{total}\n" for seed, total in totals.items())
    rows += "walker-walk,full-cem,a,1,1,1,0\ncheetah-run,latent-dcem,a,1,1,1,0\n"
    (tmp_path / "dmc/evaluations.csv").write_text(EVALUATIONS + rows)
    (row,) = start_rows(tmp_path)
    assert list(row.values()) == ["latent-dcem", "3 of 5", "1 of 2", "1 of 1", "0 of 1", "1 of 1"]
