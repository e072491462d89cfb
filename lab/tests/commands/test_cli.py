"""The command line: what it refuses and how, what it runs, how it stops and goes on."""

import dataclasses
import importlib
import itertools
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dcem_lab import cli, experiments
from dcem_lab.commands import bench, exits, export, overrides, train, values
from dcem_lab.commands.launchers import LAUNCHERS
from dcem_lab.commands.settings_help import descriptions
from dcem_lab.runs import load_checkpoint, read_record, read_records
from dcem_lab.runs.config import changed, short_name
from dcem_lab.runs.settings import Settings, known_settings, setting
from toy import experiment
from toy.command import TOY, dcem, start, wait_for
from toy.experiment import Config, Inner, Method


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# What is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["lrr=1"],
            "there is no setting 'lrr'; did you mean lr? settings: seed, updates, lr, method, hidden",
        ),
        (["dropuot=1"], "did you mean inner.dropout?"),
        (["inner.dropuot=1"], "did you mean inner.dropout?"),
        (["time_limt=1"], "did you mean time_limit?"),
        (["form=x"], "did you mean from?"),
        (["inner=3"], "there is no setting 'inner'"),
        (["lr=abc"], "lr must be float, got abc"),
        (["lr=-1"], "lr must be above 0, got -1.0"),
        (["lr=nan"], "lr must be above 0, got nan"),
        (["lr=null"], "lr must be float, got null"),
        (["lr=???"], "lr must be float, got ???"),
        (["lr=${nope}"], "lr must be float, got ${nope}"),
        (["updates=1.5"], "updates must be int, got 1.5"),
        (["updates=0"], "updates must be at least 1, got 0"),
        (["seed=-1"], "seed must be from 0 to 4294967295, got -1"),
        (["seed=4294967296"], "seed must be from 0 to 4294967295, got 4294967296"),
        (["hidden=3"], "hidden must be [int, ...], got 3"),
        (["hidden=[3,x]"], "hidden must be [int, ...], got [3,x]"),
        (["hidden=[]"], "hidden must be one or more values at least 1, got ()"),
        (["hidden=[4,0]"], "hidden must be one or more values at least 1, got (4, 0)"),
        (["hidden=[[4]]"], "hidden must be [int, ...], got [[4]]"),
        (["method=LBFGS"], "method must be ADAM or SGD, got LBFGS"),
        (["method='ADAM'"], "method must be ADAM or SGD, got 'ADAM'"),
        (["inner.dropout=1"], "inner.dropout must be at least 0 and below 1, got 1.0"),
        (["dropout=1"], "inner.dropout must be at least 0 and below 1, got 1.0"),
        (["dropout=x"], "inner.dropout must be float, got x"),
        (["note=[1]"], "note must be str or null, got [1]"),
        (["seed=1,2"], "seed=1,2 lists several values; add -m"),
        (["seed=range(2)"], "seed=range(2) lists several values; add -m"),
        (["+new=3"], "there is no setting '+new'"),
        (["~lr"], "'~lr' must be key=value"),
        (["lr"], "'lr' must be key=value"),
        (["lr==3"], "lr must be float, got =3"),
        (["lr="], "lr must be float, got nothing"),
        (["_target_=os.system"], "there is no setting '_target_'"),
        (["preset=huge"], "preset must be one of tiny, got huge"),
        (["time_limit=-1"], "time_limit must be above 0, got -1.0"),
        (["time_limit=nan"], "time_limit must be above 0, got nan"),
        (["time_limit=soon"], "time_limit must be float or null, got soon"),
        (["run_dir="], "run_dir must be a path or null, got nothing"),
        (["tensorboard=maybe"], "tensorboard must be true or false, got maybe"),
        (["launcher=joblib"], "launcher=joblib is for sweeps; add -m"),
        (["launcher=cloud", "-m"], "launcher must be one of local, joblib, slurm, got 'cloud'"),
        (["jobs=2", "-m"], "jobs=2 needs launcher=joblib"),
        (["launcher=slurm", "jobs=2", "-m"], "jobs=2 needs launcher=joblib"),
        (["launcher=joblib", "jobs=0", "-m"], "jobs must be at least 1, got 0"),
        (["launcher=joblib", "job=2", "-m"], "there is no setting 'job'; did you mean jobs?"),
        (["launcher=slurm", "timeout_min=long", "-m"], "timeout_min must be int, got long"),
        (["launcher=slurm", "timeout_min=1", "-m"], "signal_delay_s must be less than timeout_min, got 120"),
        (["launcher._target_=os.system", "-m"], "there is no setting 'launcher._target_'"),
        (["lr=0.1,-1", "-m"], "lr must be above 0, got -1.0"),
        (["lr=0.1,x", "-m"], "lr must be float, got x"),
        (["lr=0.1,0.10", "-m"], "the sweep asks for the same run more than once"),
        (["lr=interval(0,1)", "-m"], "lr must be float, got interval(0,1)"),
        (["seed=range(0)", "-m"], "seed=range(0) lists no values"),
        (["seed=range(0,3,0)", "-m"], "seed=range(0,3,0) lists no values"),
    ],
)
def test_a_bad_command_is_one_sentence_and_writes_nothing(words, message, tmp_path, capsys):
    assert dcem(*words) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("dcem train: ")
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "commands:"),
        (["--help-me"], "required: COMMAND"),
        (["trian"], "there is no command 'trian' (did you mean train?); see dcem --help"),
        (["fly"], "there is no command 'fly'; known: reproduce, train"),
        (["train"], "name an experiment"),
        (["train", "nothing"], "there is no experiment 'nothing'"),
        (["train", "no.such"], "there is no module 'no.such' to train"),
        (["train", "os.path"], "must define Config to be an experiment"),
        (["train", TOY, "--experimental-rerun=x"], "unrecognized arguments"),
        (["train", TOY, "--config-dir=x"], "unrecognized arguments"),
        (["eval", "x", "--episode", "3"], "unrecognized arguments: --episode 3 (did you mean --episodes?)"),
        (["eval", "x", "--episodes", "few"], "argument --episodes: must be a whole number from 1, got few"),
    ],
)
def test_bad_names_list_the_good_ones(arguments, message, tmp_path, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as stop:  # argparse's way
        code = stop.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_experiment_lists_the_known(monkeypatch, capsys):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"cartpole": "a.b", "planet": "c.d"})
    assert cli.main(["train", "cartpol"]) == 2
    assert "'cartpol'; did you mean 'cartpole'? known: cartpole, planet" in capsys.readouterr().err


def test_every_registered_experiment_keeps_the_contract():
    for name in experiments.EXPERIMENTS:
        module = experiments.load(name)
        for changes in ({}, *module.PRESETS.values()):
            config = changed(module.Config(), changes)
            assert overrides.read_config(config, []) == config


@pytest.mark.parametrize(
    ("module", "function", "words"), [(experiments, "load", "train planet"), (export, "keep", "export a")]
)
def test_a_missing_package_is_named(module, function, words, monkeypatch, capsys):
    def load(*_):
        raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")

    monkeypatch.setattr(module, function, load)
    assert cli.main(words.split()) == 2
    assert "the module 'mujoco' is not installed; in a checkout, run pip install" in capsys.readouterr().err


BARE = """\
import importlib.abc, sys
class Nowhere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"gymnasium", "mujoco", "dm_control", "matplotlib", "imageio", "PIL"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from dcem_lab import cli
sys.exit(cli.main(sys.argv[1:]))
"""
"""A process that has nothing of the lab's extras."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("report --results .", 0),
        ("train planet --help", 0),
        ("train planet", 2),
        ("eval cheetah-run", 2),
        ("eval cartpole-2 --episodes 1", 0),
        ("play cheetah-run", 2),
        ("play cartpole", 2),
        ("ship runs/a b", 2),
    ],
)
def test_without_the_extras_a_command_works_or_says_what_is_missing(words, code):
    done = subprocess.run([sys.executable, "-c", BARE, *words.split()], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stderr + done.stdout
    assert (code == 0 and "--help" not in words) or re.search(r"the module '\w+' is not installed", said)


# Help


def test_help_is_complete(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ["train", "examples:", "exit codes:", "75"])
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in [
        "preset=",
        "run_dir=",
        "time_limit=",
        "-m",
        "launcher=joblib",
        "launcher=slurm",
        *itertools.chain(*map(field_names, LAUNCHERS.values())),
        "examples:",
        "exit codes:",
    ]:
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 110


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name not in ("train", "bench")])
def test_every_command_has_examples_that_it_takes(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "exit codes:" in shown
    examples = re.findall(rf"^  dcem {command} (.*?)(?:  .*)?$", shown, re.MULTILINE)
    assert examples
    parser = importlib.import_module(f"dcem_lab.commands.{cli.COMMANDS[command][0]}")._parser()
    for example in examples:
        parser.parse_args(shlex.split(example))


def test_bench_runs_the_checkout_s_benchmark_and_says_where_it_is_not(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "run.py").write_text("import sys\nprint(*sys.argv[1:])\nsys.exit(len(sys.argv) - 2)\n")
    assert cli.main(["bench", "--quick"]) == 0
    assert capfd.readouterr().out == "--quick\n"
    assert cli.main(["bench", "a", "b", "c", "d"]) == 1
    monkeypatch.setattr(bench, "CHECKOUTS", (tmp_path / "nowhere",))
    assert cli.main(["bench"]) == 2
    assert "run this in a checkout, where benchmarks/run.py is" in capfd.readouterr().err


def test_the_version_is_known(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert re.match(r"dcem \S+", capsys.readouterr().out)


def test_help_explains_every_setting(capsys):
    for name in experiments.EXPERIMENTS:
        assert cli.main(["train", name, "--help"]) == 0
        shown = capsys.readouterr().out.split("with their defaults:")[1]
        config_type = experiments.load(name).Config
        assert set(known_settings(config_type)) - set(dict(descriptions(config_type))) == set()
        assert "preset=tiny: " in shown.split("presets:")[1]
        assert max(map(len, shown.splitlines())) <= 110


def test_help_of_an_experiment_lists_its_settings(capsys):
    assert cli.main(["train", TOY, "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"lr=0.01 +\(float, above 0\)", shown)
    assert re.search(r"hidden=\[8,8\] +\(\[int, ...\], one or more values at least 1\)", shown)
    assert re.search(r"method=ADAM +\(ADAM or SGD\)", shown)
    assert re.search(r"inner.dropout=0.2 +\(float, at least 0 and below 1\)", shown)
    assert "preset=tiny: updates=5, hidden=[4]" in shown
    assert shown.index("A straight line fitted to noise.") < shown.index("lr=0.01")
    assert "launcher=slurm" not in shown  # `dcem train --help` has what all experiments share


# What is run


def test_settings_become_the_dataclass():
    base = Config(updates=5, hidden=(4,))
    assert overrides.read_config(base, []) == base
    words = ["lr=1e-3", "hidden=[1,2]", "method=SGD", "inner.dropout=0.5", "note='a, b'", "updates=7"]
    assert overrides.read_config(base, words) == Config(
        lr=1e-3, hidden=(1, 2), method=Method.SGD, inner=Inner(0.5), note="a, b", updates=7
    )
    assert overrides.read_config(Config(note="a"), ["note=null"]).note is None
    assert overrides.read_config(base, ["note='null'"]).note == "null"
    assert overrides.read_config(base, ["note=${oc.env:HOME}"]).note == "${oc.env:HOME}"


def test_a_setting_may_be_named_by_its_end_where_that_means_no_other():
    @dataclasses.dataclass(frozen=True)
    class Planner(Settings):
        samples: int = setting(10, least=1)

    @dataclasses.dataclass(frozen=True)
    class Agent(Settings):
        planner: Planner = Planner()
        seed: int = 5

    @dataclasses.dataclass(frozen=True)
    class Nested(Settings):
        seed: int = 0
        agent: Agent = Agent()
        evaluation: Planner = Planner()

    def read(*words):
        return overrides.read_config(Nested(), words)

    assert read("planner.samples=3").agent.planner.samples == 3
    assert read("seed=3") == Nested(seed=3)
    for words, message in (
        (["samples=3"], "'samples' is ambiguous: it may be agent.planner.samples or evaluation.samples"),
        (["planner.samples=0"], "agent.planner.samples must be at least 1, got 0"),
        (["ner.samples=3"], "there is no setting 'ner.samples'"),
        (["planner=3"], "there is no setting 'planner'"),
    ):
        with pytest.raises(exits.UsageError, match=message):
            read(*words)


def test_a_path_with_commas_is_one_value():
    [path] = overrides.read_sweep(Config(), ["note='runs/a,lr=0.1/seed0'"])
    assert path.note == "runs/a,lr=0.1/seed0"
    given = ["from=runs/it's,lr=0.1/seed0"]
    _, _, words = train._sort(given, experiment, multirun=False)
    assert words == ['source="runs/it\'s,lr=0.1/seed0"']
    assert values.read(words[0].partition("=")[2], str) == "runs/it's,lr=0.1/seed0"
    assert train._sort(["from=a,b"], experiment, multirun=True)[2] == ["source=a,b"]


def test_a_device_that_is_not_there_is_refused_wherever_it_is_set(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Loop:
        device: str = "auto"

    @dataclasses.dataclass(frozen=True)
    class Nested:
        loop: Loop = Loop()

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    train._check(None, Nested(), on_this_machine=True)
    train._check(None, Nested(Loop("cuda")), on_this_machine=False)
    with pytest.raises(exits.UsageError, match="there is no CUDA device, got cuda"):
        train._check(None, Nested(Loop("cuda")), on_this_machine=True)


def test_no_experiment_has_a_setting_that_the_command_line_takes_for_itself():
    taken = {"from", *field_names(train.Options), *itertools.chain(*map(field_names, LAUNCHERS.values()))}
    for name in experiments.EXPERIMENTS:
        keys = known_settings(experiments.load(name).Config)
        assert not taken & {short_name(key, keys) for key in keys}


def field_names(config_type):
    return [field.name for field in dataclasses.fields(config_type)]


def test_a_sweep_is_the_product_in_order():
    configs = overrides.read_sweep(Config(), ["seed=range(2)", "lr=0.1, 0.2", "hidden=[1],[2,3]"])
    assert [(config.seed, config.lr, config.hidden) for config in configs] == [
        (seed, lr, hidden) for seed in (0, 1) for lr in (0.1, 0.2) for hidden in ((1,), (2, 3))
    ]
    assert [config.seed for config in overrides.read_sweep(Config(), ["seed=range(1,6,2)"])] == [1, 3, 5]


def test_a_run_has_its_folder_and_is_not_done_twice(tmp_path, capsys):
    assert dcem("preset=tiny", "seed=3", "lr=1e-1") == 0
    folder = Path("runs", TOY, "tiny,lr=0.1", "seed3")
    record = read_record(folder)
    assert record["command"] == f"dcem train {TOY} tensorboard=false preset=tiny seed=3 lr=1e-1"
    assert (record["config"]["updates"], record["variant"]) == (5, "tiny,lr=0.1")
    before = (folder / "log.jsonl").stat().st_mtime_ns
    assert dcem("lr=0.1", "seed=3", "preset=tiny") == 0
    assert "already finished" in capsys.readouterr().err
    assert (folder / "log.jsonl").stat().st_mtime_ns == before


def test_a_folder_of_ones_own_takes_one_config(capsys):
    assert dcem("preset=tiny", "run_dir=here") == 0
    assert read_record("here")["status"] == "finished"
    assert dcem("preset=tiny", "run_dir=here", "lr=0.5") == 2
    assert "here holds a run with lr=0.01 (now 0.5)" in capsys.readouterr().err


def test_dry_run(tmp_path, capsys):
    assert dcem("preset=tiny", "seed=0,1", "-m", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert f"runs/{TOY}/tiny/seed0" in shown
    assert f"runs/{TOY}/tiny/seed1" in shown
    assert '"updates": 5' in shown
    assert list(tmp_path.iterdir()) == []


def test_a_failure_has_its_traceback_and_code(capsys):
    assert dcem("preset=tiny", "fail_at=2") == 1
    shown = capsys.readouterr().err
    assert "ArithmeticError: asked to fail" in shown
    assert "Traceback" in shown


def test_a_time_limit_ends_in_good_order_and_the_command_goes_on(capsys):
    assert dcem("updates=30", "pause=0.02", "run_dir=here", "time_limit=0.2") == 75
    shown = capsys.readouterr().err
    assert "time limit: saved at step" in shown
    assert f"resume with: dcem train {TOY}" in shown
    assert 0 < load_checkpoint("here").step < 30
    assert dcem("updates=30", "pause=0.02", "run_dir=here") == 0
    steps = [row["step"] for row in read_records(Path("here/log.jsonl")) if "loss" in row]
    assert steps == list(range(30))


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_75(number):
    process = start("updates=100000", "pause=0.01", "run_dir=here")
    wait_for(Path("here/log.jsonl"), '"loss"')
    process.send_signal(number)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 75
    assert f"{number.name}: saved at step {load_checkpoint('here').step} of 100000, in here" in shown
    assert read_record("here")["status"] == "interrupted"
