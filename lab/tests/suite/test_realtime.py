"""The table of decisions in real time."""

from pathlib import Path

from dcem_lab.suite.realtime import decision_rows


def test_a_row_has_its_return_and_that_of_the_same_episodes_as_it_ships(tmp_path: Path) -> None:
    columns = "task,controller,weights,seed,dtype,trajectories,ms,busy_ms,plain_busy_ms\n"
    _write(
        tmp_path / "realtime" / "decisions.csv",
        columns
        + "run,latent,quick,1,float32,500,99,30,70\n"
        + "run,latent-bfloat16,quick,1,bfloat16,500,88,20,\n"
        + "run,policy,quick,1,float32,0,0.1,0.1,0.2\n",
    )
    header = "task,controller,run,samples,iterations,episode_seed,total\n"
    played = [("latent-bfloat16", 7, 10.0), ("latent-bfloat16", 8, 20.0)]
    _write(
        tmp_path / "realtime" / "evaluations.csv",
        header + "".join(f"run,{name},quick,100,5,{seed},{total}\n" for name, seed, total in played),
    )
    shipped = [(0, 7, 500.0), (1, 7, 12.0), (1, 8, 20.0), (1, 9, 1000.0)]
    _write(
        tmp_path / "dmc" / "evaluations.csv",
        header + "".join(f"run,latent,long/seed{k},100,5,{seed},{total}\n" for k, seed, total in shipped),
    )
    whole, half, policy = decision_rows(tmp_path)
    assert whole == {
        "weights": "quick",
        "plans": "default",
        "trajectories per decision": "500",
        "ms per decision": "99.0",
        "CPU ms": "30.0",
        "CPU ms without kernels": "70.0",
        "mean return": "344",
        "episodes": "3",
        "same episodes, default planner": "344",
    }
    assert (half["plans"], half["CPU ms"], half["CPU ms without kernels"]) == ("in bfloat16", "20.0", "–")
    assert (half["mean return"], half["episodes"]) == ("15", "2")
    assert half["same episodes, default planner"] == "16"
    assert (policy["plans"], policy["mean return"], policy["episodes"]) == ("the policy alone", "–", "0")


def test_nothing_measured_is_no_rows(tmp_path: Path) -> None:
    assert decision_rows(tmp_path) == []


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
