"""The table of what the parts of a planner with a value are worth."""

import json
from pathlib import Path

import pytest

from dcem_lab.suite.parts import part_rows

HEADER = "task,controller,run,samples,iterations,episode_seed,total\n"
NAMES = {
    "policy": "the policy alone",
    "full-cem-value": "search over actions",
    "latent-dcem-value": "latent search",
    "latent-dcem-value-untrained": "latent search, untrained decoder",
}


@pytest.fixture(autouse=True)
def questions(tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_text(json.dumps({"parts": NAMES}))


def test_differences_are_between_episodes_of_the_same_seed(tmp_path: Path) -> None:
    totals = {
        "latent-dcem-value,w,100,5": {7: 30.0, 8: 50.0},
        "policy,w,152,0": {7: 10.0, 8: 30.0, 9: 1000.0},
        "latent-dcem-value-untrained,w/seed0,100,5": {7: 20.0, 8: 40.0},
        "latent-dcem-value-untrained,w/seed1,100,5": {7: 24.0, 8: 44.0},
        "full-cem-value-500,v,100,5": {7: 5.0},
        "latent-dcem-value-100,w,20,5": {7: 18.0},
        "full-cem-value-100,w,50,2": {7: 19.0},
    }
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "evaluations.csv").write_text(
        HEADER
        + "".join(f"run,{who},{at},{total}\n" for who, all in totals.items() for at, total in all.items())
    )
    other, policy, full_100, trained_100, trained, untrained = part_rows(tmp_path)
    assert (other["weights"], other["plans"], other["trajectories per decision"]) == (
        "v", "search over actions", "500",
    )  # fmt: skip
    assert other["more than the policy alone"] == other["more than latent search"] == "–"
    assert (policy["episodes"], policy["mean return"], policy["trajectories per decision"]) == (
        "3",
        "347",
        "0",
    )
    assert policy["more than the policy alone"] == ""
    assert trained_100["trajectories per decision"] == full_100["trajectories per decision"] == "100"
    assert full_100["more than latent search"] == "+1 [+1, +1]"
    assert trained["more than the policy alone"] == "+20 [+20, +20]"
    assert untrained == {
        "weights": "w",
        "plans": "latent search, untrained decoder (seeds 0, 1)",
        "trajectories per decision": "500",
        "episodes": "2, 2",
        "mean return": "30, 34",
        "more than the policy alone": "+12 [+12, +12]",
        "more than latent search": "-8 [-8, -8]",
    }


def test_controllers_as_they_ship_are_compared_too(tmp_path: Path) -> None:
    for folder in ("parts", "agent", "realtime"):
        (tmp_path / folder).mkdir()
    decisions = "task,controller,weights,seed,trajectories\nrun,full-cem-value,v,1,912\nrun,policy,v,1,0\n"
    (tmp_path / "realtime" / "decisions.csv").write_text(decisions)
    (tmp_path / "realtime" / "evaluations.csv").write_text(f"{HEADER}run,policy,v,152,0,7,1\n")
    shipped = "run,full-cem-value,long/seed0,152,6,7,99\nrun,full-cem-value,long/seed1,152,6,7,9\n"
    (tmp_path / "agent" / "evaluations.csv").write_text(HEADER + shipped)
    assert part_rows(tmp_path) == []  # there is nothing yet to compare them with
    (tmp_path / "parts" / "evaluations.csv").write_text(f"{HEADER}run,full-cem-value-500,v,100,5,7,6\n")
    rows = part_rows(tmp_path)
    assert [(row["trajectories per decision"], row["mean return"]) for row in rows] == [
        ("0", "1"), ("500", "6"), ("912", "9"),
    ]  # fmt: skip
    assert [row["more than the policy alone"] for row in rows] == ["", "+5 [+5, +5]", "+8 [+8, +8]"]


def test_nothing_measured_is_no_rows(tmp_path: Path) -> None:
    assert part_rows(tmp_path) == []
