"""Every command that reads a stranger's run folder refuses what is wrong with it in one safe sentence."""

import json
from pathlib import Path

import pytest

from dcem_lab import cli
from toy.command import TOY, dcem

EVIL = "\x1b[2J\x1b]0;owned\x07\r\n"


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert dcem("preset=tiny", "run_dir=run") == 0
    return Path("run")


def change(run: Path, **fields: object) -> None:
    path = run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "run"],
        ["play", "run"],
        ["export", "run", "--name", "mine"],
        ["train", TOY, "preset=tiny", "run_dir=run"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    "fields",
    [{"config": [1]}, {"step": "3"}, {"experiment": None}, {"status": EVIL}, {"experiment": EVIL}],
    ids=repr,
)
def test_a_record_of_other_types_is_one_sentence(words, fields, run, capsys):
    change(run, **fields)
    capsys.readouterr()
    assert cli.main(words) == 2
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith(f"dcem {words[0]}: run/run.json: {next(iter(fields))} must be ")
    assert line.isprintable()
    assert shown.out == ""


@pytest.mark.parametrize("config", [{}, {"latent_dim": [], "tau": "x", "seed": {}}])
def test_a_decoder_of_no_config_is_not_played(config, run, capsys):
    change(run, experiment="cartpole", config=config)
    assert cli.main(["play", "run"]) == 2
    assert "dcem play: run must have the config of a cartpole decoder" in capsys.readouterr().err


def test_a_sweep_lists_a_damaged_run_as_failed(run, capsys):
    assert dcem("preset=tiny", "seed=0,1", "-m", "run_dir=all") == 0
    change(Path("all/tiny/seed1"), steps=EVIL)
    capsys.readouterr()
    assert dcem("preset=tiny", "seed=0,1", "-m", "run_dir=all") == 1
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == ["finished", "failed"]
    assert r"steps must be a whole number from 0, or null, got '\x1b[2J" in shown


def test_a_damaged_checkpoint_with_a_name_of_its_own_is_warned_of_safely(run):
    Path("run/checkpoints", f"step9{EVIL}.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"using step0+5.json") as caught:
        assert cli.main(["eval", "run"]) == 2
    assert str(caught[0].message).isprintable()
