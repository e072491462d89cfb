"""What `dcem eval`, `dcem play` and `dcem export` refuse, and what they say about an evaluation."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dcem_lab import cli, pretrained
from dcem_lab.cartpole import closed_loop, driving, shipped
from dcem_lab.commands import evaluate as command
from dcem_lab.commands import exits
from dcem_lab.suite import evaluate
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.results import Row, controller_of
from dcem_lab.suite.trained import load
from toy.controlled import make_run

PLANNER = PlannerConfig(samples=4, elites=2, iterations=1, horizon=2)


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("latent runs") / "run", latent=True, planner=PLANNER)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("full") / "run", latent=False, planner=PLANNER)


@pytest.fixture
def no_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is played is a failure."""
    monkeypatch.setattr(evaluate, "play", lambda *_: pytest.fail("an episode was played"))


def exit_code(*words: object) -> object:
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as stop:  # argparse's way
        return stop.code


def test_the_others_are_played_as_the_first_were(
    latent: Path, tmp_path: Path, interrupt: Callable[[int], None], capsys: pytest.CaptureFixture
) -> None:
    interrupt(150)  # in the second episode of 100 actions
    table = tmp_path / "all of them.csv"
    options = {"--seed": 5, "--samples": 5, "--elites": 2, "--iterations": 2, "--horizon": 2, "--tau": 0.5}
    options |= {
        "--dtype": "bfloat16",
        "--snapshot": "last",
        "--device": "cpu",
        "--episodes": 3,
        "--at-once": 1,
    }
    options |= {"--csv": tmp_path / "played.csv", "--table": table, "--controller": "last one", "--run": "a"}
    words = ["--full-space", *(word for option in options.items() for word in option)]
    assert exit_code("eval", latent, *words) == exits.INTERRUPTED
    said = capsys.readouterr().err
    assert f"the 1 finished episodes are in {tmp_path / 'played-first-1.csv'} and not in {table}\n" in said
    name, eval_, *others = shlex.split(said.split("play the others with: ")[1])
    assert (name, eval_) == ("dcem", "eval")
    asked, first = (command._parser().parse_args(list(map(str, w))) for w in (others, [latent, *words]))
    assert vars(asked) == {**vars(first), "seed": 6, "episodes": 2}


def test_options_that_were_not_given_are_not_repeated(
    latent: Path, interrupt: Callable[[int], None], capsys: pytest.CaptureFixture
) -> None:
    interrupt(1)
    assert exit_code("eval", latent, "--episodes", 2) == exits.INTERRUPTED
    assert capsys.readouterr().err.endswith(f"dcem eval {shlex.quote(str(latent))} --episodes 2\n")


def test_the_last_weights_need_a_name_in_the_table(
    latent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    table = tmp_path / "evaluations.csv"
    words = ["--episodes", 1, "--csv", tmp_path / "episodes.csv", "--table", table, "--run", "a"]
    assert exit_code("eval", latent, *words, "--snapshot", "last") == exits.USAGE
    assert "--table needs a name for a controller whose planner or snapshot is changed" in (
        capsys.readouterr().err
    )
    assert not table.exists()

    load(latent).ship("pendulum", tmp_path)
    read = pretrained.load
    monkeypatch.setattr(pretrained, "load", lambda name: read(name, tmp_path))
    assert exit_code("eval", latent, *words) == exits.DONE
    assert exit_code("eval", latent, *words, "--snapshot", "last", "--controller", "late") == exits.DONE
    assert exit_code("eval", "pendulum", *words, "--controller", "shipped") == exits.DONE
    records = json.loads(table.with_suffix(".json").read_text())
    assert {name.split()[1]: record["snapshot"] for name, record in records.items()} == {
        "latent-dcem-ppo": "best",
        "late": "last",
        "shipped": None,
    }
    assert len(table.read_text().splitlines()) == 1 + 3


def test_a_fine_tuned_controller_is_named_by_how_it_plans(latent: Path, full: Path) -> None:
    assert controller_of(load(latent)) == "latent-dcem-ppo"
    assert controller_of(load(full)) == "full-cem-ppo"


@pytest.mark.usefixtures("no_episodes")
@pytest.mark.parametrize("name", ["eval", "play"])
def test_only_a_latent_controller_can_go_without_its_decoder(
    full: Path, name: str, capsys: pytest.CaptureFixture
) -> None:
    assert exit_code(name, full, "--full-space") == exits.USAGE
    said = capsys.readouterr().err
    assert f"full_space must be left out for {full}: it is for latent controllers" in said


@pytest.mark.usefixtures("no_episodes")
def test_a_new_decoder_needs_something_to_correct(full: Path, capsys: pytest.CaptureFixture) -> None:
    assert exit_code("eval", full, "--new-decoder", 0) == exits.USAGE
    said = capsys.readouterr().err
    assert f"new_decoder must be left out for {full}, which has neither a decoder nor a value" in said


def test_the_elites_can_be_weighted_by_a_softmax(latent: Path, tmp_path: Path) -> None:
    words = ["--episodes", 1, "--csv", tmp_path / "episodes.csv", "--table", tmp_path / "table.csv"]
    words += ["--controller", "weighted", "--temperature", 0.5, "--new-decoder", 3]
    assert exit_code("eval", latent, *words) == exits.DONE
    [record] = json.loads((tmp_path / "table.json").read_text()).values()
    assert record["planner"]["temperature"] == 0.5


@pytest.mark.parametrize(
    ("words", "unfit"),
    [
        (["--samples", 5, "--full-space", "--snapshot", "last"], "--full-space, --samples, --snapshot"),
        (["--elites", 5, "--seed", 1], "--elites"),
        (["--iterations", 5, "--horizon", 3, "--tau", 0], "--horizon, --iterations, --tau"),
        (["--device", "cuda"], "--device"),
    ],
)
def test_a_film_of_the_cartpole_takes_no_planner(
    tmp_path: Path, words: list[object], unfit: str, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "film.mp4"
    assert exit_code("play", "cartpole-2", "--output", path, *words) == exits.USAGE
    assert f"dcem play: {unfit} must be left out for cartpole-2" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_decoder_of_the_cartpole_drives_from_the_states_it_is_compared_on(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "states.csv"
    assert exit_code("eval", "cartpole-2", "--episodes", 3, "--csv", path) == exits.DONE
    driven = closed_loop.drive(shipped.load("cartpole-2"), 3)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["stays_up"]) for row in rows] == driving.stays_up(driven.states).int().tolist()
    assert [float(row["cost_a_step"]) for row in rows] == pytest.approx(
        driven.costs.mean(0).tolist(), rel=1e-3
    )
    said = capsys.readouterr().out
    assert f"stays up from {sum(int(row['stays_up']) for row in rows)} of 3 states" in said
    assert "1,000 trajectories per plan" in said
    assert "trained to plan once" in said  # why the pole falls


def test_a_suggested_name_can_be_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert exit_code("eval", "cartpol") == exits.USAGE
    suggested = re.search(r"did you mean '([\w-]+)'", capsys.readouterr().err)
    assert suggested is not None
    for known in ("cartpole", suggested[1]):
        assert exit_code("eval", known, "--episodes", 1, "--csv", tmp_path / "states.csv") == exits.DONE


def test_one_episode_has_a_return_and_no_statistics(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert exit_code("eval", full, "--episodes", 1, "--csv", tmp_path / "a.csv") == exits.DONE
    shown = capsys.readouterr().out
    [row] = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert shown.startswith(f"return    {float(row['return']):.2f}\n") and "iqm" not in shown


def test_a_decoder_of_the_cartpole_is_evaluated_as_it_was_trained(capsys: pytest.CaptureFixture) -> None:
    assert exit_code("eval", "cartpole-2", "--samples", 5, "--seed", 1) == exits.USAGE
    assert "dcem eval: --samples, --seed must be left out for cartpole-2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_film_of_the_cartpole_is_made_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    words = ["--output", path, "--device", "cpu", "--seed", 0, "--fps", 20]
    assert exit_code("play", "cartpole-2", *words) == exits.DONE
    assert path.exists()


@pytest.mark.parametrize(
    "words", [("eval", "no-such-thing"), ("play", "no-such-thing"), ("play", "cartpole")]
)
def test_seeds_are_not_negative(words: tuple[str, ...], capsys: pytest.CaptureFixture) -> None:
    assert exit_code(*words, "--seed", -1) == exits.USAGE
    assert "argument --seed: must be a whole number from 0, got -1" in capsys.readouterr().err


@pytest.mark.usefixtures("no_episodes")
@pytest.mark.parametrize(("content", "found"), [("a,b\n1,2\n", "a, b"), ("", "")])
def test_another_table_is_refused_before_anything_is_played(
    full: Path, tmp_path: Path, content: str, found: str, capsys: pytest.CaptureFixture
) -> None:
    table = tmp_path / "other.csv"
    table.write_text(content)
    assert exit_code("eval", full, "--table", table) == exits.USAGE
    said = capsys.readouterr().err
    assert f"{table} must have the columns {', '.join(Row._fields)}, got {found}" in said
    assert table.read_text() == content


@pytest.mark.parametrize("name", ["", ".", "../../x", "a/b", "-x", "a b"])
def test_what_is_kept_has_a_name_and_no_path(
    full: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture
) -> None:
    results = tmp_path / "one" / "results"
    assert exit_code("export", full, f"--name={name}", "--results", results) == exits.USAGE
    said = capsys.readouterr().err
    assert f"variant must be letters, digits and any of ._=,+- and no path, got {name!r}" in said
    assert not list(tmp_path.iterdir())


def test_names_of_variants_have_capitals(full: Path, tmp_path: Path) -> None:
    assert exit_code("export", full, "--name", "pendulum-T5-tau0.2", "--results", tmp_path) == exits.DONE
    assert (tmp_path / "ppo" / "pendulum-T5-tau0.2" / "seed0" / "curve.csv").exists()


HEADER = ",".join(Row._fields)


def write_table(path: Path, *rows: str) -> Path:
    """Rows of task, controller, run and return, with a record each."""
    lines = [f"{','.join(row.split()[:3])},4,1,5,{row.split()[3]}" for row in rows]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    records = {" ".join(row.split()[:3]): {"from": path.stem} for row in rows}
    path.with_suffix(".json").write_text(json.dumps(records))
    return path


def in_table(path: Path) -> dict[str, str]:
    """Returns by task, controller and run."""
    header, *lines = path.read_text().splitlines()
    assert header == HEADER
    return {" ".join(line.split(",")[:3]): line.split(",")[-1] for line in lines}


@pytest.mark.usefixtures("no_episodes")
def test_tables_are_merged_and_controllers_renamed(tmp_path: Path) -> None:
    table = write_table(tmp_path / "ours.csv", "a cem x 1.0", "a cem y 2.0", "b dcem x 3.0")
    other = write_table(tmp_path / "theirs.csv", "a cem y 4.0", "c dcem z 5.0")
    words = ["--merge", other, "--rename", "dcem", "latent-dcem"]
    assert exit_code("eval", "--table", table, *words) == exits.DONE
    merged = {"a cem x": "1.0", "a cem y": "4.0", "b latent-dcem x": "3.0", "c latent-dcem z": "5.0"}
    assert in_table(table) == merged
    origins = ["ours", "theirs", "ours", "theirs"]
    records = json.loads(table.with_suffix(".json").read_text())
    assert records == {name: {"from": origin} for name, origin in zip(merged, origins, strict=True)}
    assert in_table(other) == {"a cem y": "4.0", "c dcem z": "5.0"}


@pytest.mark.usefixtures("no_episodes")
def test_runs_are_renamed_too(tmp_path: Path) -> None:
    table = write_table(tmp_path / "ours.csv", "a cem runs/x 1.0", "a cem y 2.0", "b dcem runs/x 3.0")
    assert exit_code("eval", "--table", table, "--rename", "runs/x", "best/seed0") == exits.DONE
    renamed = {"a cem best/seed0": "1.0", "a cem y": "2.0", "b dcem best/seed0": "3.0"}
    assert in_table(table) == renamed
    assert json.loads(table.with_suffix(".json").read_text()).keys() == renamed.keys()


@pytest.mark.usefixtures("no_episodes")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rename", "cem", "dcem"], "must have no controller 'dcem' yet for a and x"),
        (["--rename", "mpc", "x"], "must have a controller or run 'mpc' to rename, but it has none"),
        (["--rename", "x", "y"], "must have no run 'y' yet for a and dcem"),
        (["--merge", "nothing.csv"], "nothing.csv must be a table to merge, but it is not there"),
        (["--merge", "other.csv", "--seed", "3"], "need --table, and nothing else, got also --seed"),
        (["cheetah-run", "--merge", "other.csv"], "need --table, and nothing else, got also cheetah-run"),
    ],
)
def test_a_table_is_left_alone_where_it_cannot_be_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    table = write_table(tmp_path / "ours.csv", "a cem x 1.0", "a dcem x 2.0", "a dcem y 3.0")
    before = table.read_bytes(), table.with_suffix(".json").read_bytes()
    assert exit_code("eval", *words, "--table", table) == exits.USAGE
    assert message in capsys.readouterr().err
    assert (table.read_bytes(), table.with_suffix(".json").read_bytes()) == before


def test_something_to_play_or_to_edit_is_needed(capsys: pytest.CaptureFixture) -> None:
    assert exit_code("eval") == exits.USAGE
    assert "name a run folder or pretrained weights" in capsys.readouterr().err
    assert exit_code("eval", "--merge", "x.csv") == exits.USAGE
    assert "--merge and --rename need --table" in capsys.readouterr().err
