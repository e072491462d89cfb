"""The table of Gymnasium tasks."""

import json
from pathlib import Path

from dcem_lab.report.sources import Sources
from dcem_lab.study import gymnasium_tasks


def write(results: Path, task: str, evaluations: str) -> None:
    folder = results / "gymnasium" / "planet" / f"{task}-gym" / "seed0"
    folder.mkdir(parents=True)
    command = f"dcem train planet preset=gym task={task} loop.env_steps=100 run_dir=runs/a"
    record = {"config": {"task": task, "loop": {"eval_episodes": 4, "env_steps": 200}}, "command": command}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "curve.csv").write_text("env_steps,seconds,eval_mean\n" + evaluations)


def test_a_training_has_its_first_and_its_last_evaluation(tmp_path: Path) -> None:
    write(tmp_path, "B-v1", "50,60,1000\n75,90,\n100,180,2000\n")
    write(tmp_path, "A-v1", "100,60,3.25\n")
    write(tmp_path, "C-v1", "100,60,\n")
    sources = Sources(tmp_path, tmp_path)
    once, twice = gymnasium_tasks.rows(sources)
    assert (once["task"], once["first evaluation"]) == ("A-v1", "3.2 after 100")
    assert (once["after training"], once["minutes"]) == ("3.2 (4 episodes)", "1")
    assert (twice["task"], twice["steps"], twice["minutes"]) == ("B-v1", "100 of 200", "3")
    assert twice["first evaluation"] == "1,000 after 50"
    assert twice["after training"] == "2,000 (4 episodes)"
    *_, command, _ = gymnasium_tasks.commands(sources)
    assert command == {"task": "B-v1", "command": "`dcem train planet preset=gym task=B-v1 env_steps=100`"}
