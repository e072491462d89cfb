"""`dcem reproduce`: every training is done and exported, and the page written; a stop is passed on."""

import pytest

from dcem_lab import cli, pretrained
from dcem_lab.cartpole import grid as cartpole_grid
from dcem_lab.cartpole import study as cartpole_study
from dcem_lab.cartpole.scores import Score, read_scores, write_scores
from dcem_lab.cartpole.train import members_of
from dcem_lab.commands import evaluate, exits, play, reproduce
from dcem_lab.commands.reproduce import Training

TINY = (
    Training("regression", "regression/dcem", ("preset=tiny",)),
    Training("regression", "regression/gd", ("preset=tiny", "method=gd")),
)

SHIPPED = Score("cartpole-8", "validation", 0, 1000, -9.8765)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(reproduce, "QUICK", TINY)
    monkeypatch.setattr(play, "main", lambda words: exits.DONE)
    smaller = ("--episodes", "1", "--samples", "2", "--elites", "1", "--iterations", "1")
    monkeypatch.setattr(reproduce, "SMALL_PLANNER", smaller)
    monkeypatch.setattr(cartpole_study, "score_shipped", lambda path: write_scores(path, [SHIPPED]))


def test_trains_and_exports(tmp_path, capsys):
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path)]) == exits.DONE
    assert sorted(path.name for path in (tmp_path / "results" / "regression").iterdir()) == [
        "tiny",
        "tiny,method=gd",
    ]
    page = tmp_path / "report.html"
    assert page.as_uri() in capsys.readouterr().out
    assert "Your quick run" in page.read_text() and "-9.88" in page.read_text()
    # Again: nothing is trained twice.
    before = (tmp_path / "runs/regression/dcem/log.jsonl").stat().st_mtime_ns
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path)]) == exits.DONE
    assert (tmp_path / "runs/regression/dcem/log.jsonl").stat().st_mtime_ns == before


def test_a_stop_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce.train, "main", lambda words: exits.INTERRUPTED)
    assert cli.main(["reproduce", "--quick", "--out", str(tmp_path)]) == exits.INTERRUPTED


def test_what_ships_for_the_control_suite_is_evaluated_once(tmp_path, monkeypatch):
    asked = []

    def play_episode(words):
        asked.append(words)
        (tmp_path / "walker-walk.csv").write_text("seed,return,length\n0,777.5,500\n")
        return exits.DONE

    monkeypatch.setattr(evaluate, "main", play_episode)
    monkeypatch.setattr(pretrained, "available", lambda: ["cartpole-8", "walker-walk"])
    for _ in range(2):
        reproduce._evaluate_suite(tmp_path)
    [words] = asked
    assert words[0] == "walker-walk" and words[-2:] == ["--csv", str(tmp_path / "walker-walk.csv")]


def test_a_simulator_that_is_missing_is_no_failure(tmp_path, monkeypatch, capsys):
    def refuse(words):
        raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")

    monkeypatch.setattr(evaluate, "main", refuse)
    monkeypatch.setattr(pretrained, "available", lambda: ["cheetah-run"])
    reproduce._evaluate_suite(tmp_path)
    assert "skipped: the module 'mujoco' is not installed" in capsys.readouterr().out


def test_the_study_is_completed_once(tmp_path, monkeypatch):
    """Trainings, baselines, then scores and pictures; a second run does none of it again."""
    grid = ("preset=tiny", "latent_dims=[2]", "seeds=[0]")
    trainings = (
        TINY[0],
        Training("cartpole-grid", "cartpole/soft", grid),
        Training("cartpole-baselines", "cartpole/baselines", ("preset=tiny",)),
    )
    done = []

    def reevaluate(folder, root):
        names = [member.name for member in members_of(cartpole_study.read_record(folder)["config"])]
        kinds = ("validation", "fresh")
        rows = [Score(name, kind, 0, 1000, -9.0) for name in (*names, "expert-1000-10-10") for kind in kinds]
        done.append(write_scores(root / "reevaluation.csv", rows).name)

    def leave(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("controller,trajectories,states,steps,get_up,stay_up,seen,median_cost_a_step\n")
        done.append(path.name)

    monkeypatch.setattr(reproduce, "STUDY", trainings)
    monkeypatch.setattr(cartpole_grid, "reevaluate", reevaluate)
    monkeypatch.setattr(cartpole_study.pictures, "write", lambda folders, root: done.append("pictures"))
    monkeypatch.setattr(cartpole_study.closed_loop, "write", lambda root: leave(root / "closed_loop.csv"))
    monkeypatch.setattr(cartpole_study, "film", lambda what, path: done.append("film"))
    assert cli.main(["reproduce", "--out", str(tmp_path)]) == exits.DONE
    assert done == ["reevaluation.csv", "pictures", "closed_loop.csv", "film"]
    root = tmp_path / "results" / "cartpole"
    assert (root / "d2-tau1" / "seed0" / "curve.csv").exists()
    assert (root / "baselines" / "seed0" / "scores.csv").exists()
    assert "improvement factor" in (tmp_path / "report.html").read_text()
    assert cli.main(["reproduce", "--out", str(tmp_path)]) == exits.DONE
    assert done[4:] == ["pictures", "film"]  # which this test does not write


def test_scores_of_what_ships(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(cartpole_study, "SHIPPED", ("cartpole-2",))
    monkeypatch.setattr(cartpole_study, "STRONG", cartpole_study.PAPER)
    found = read_scores(cartpole_study.score_shipped(tmp_path / "shipped.csv", draws=1))
    costs = {row.controller: row.cost for row in found if row.states == "validation"}
    assert costs["cartpole-2"] < -9.5 and -10 < costs["expert-100-10-30"] < -8
