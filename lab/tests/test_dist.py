"""The wheels, installed where there is nothing else, do what they should, and say what is missing."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, ROOT / "lab")
    return {path.name.split("-")[0]: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """Of an environment with the library in it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "-q", TORCH)
    before = run(interpreter, "-m", "pip", "freeze").splitlines()
    run(interpreter, "-m", "pip", "install", "-q", wheels["dcem"])
    after = run(interpreter, "-m", "pip", "freeze").splitlines()
    assert [line.split(" ")[0] for line in after if line not in before] == ["dcem"], "it needs torch alone"
    return interpreter


@pytest.mark.slow
@pytest.mark.process
def test_the_library_is_small_and_works_on_torch_alone(wheels: dict[str, Path], python: Path) -> None:
    assert wheels["dcem"].stat().st_size < 500_000
    solve = "dcem.minimize(lambda x: x.square().sum(-1), dcem.DCEM(), torch.ones(2)).x.norm() < 1"
    assert "True" in run(python, "-c", f"import torch, dcem; print({solve})")
    assert not (python.parent / "dcem").exists(), "no command that cannot work"


@pytest.mark.slow
@pytest.mark.process
def test_the_lab_brings_the_command_and_says_what_is_missing(wheels: dict[str, Path], python: Path) -> None:
    run(python, "-m", "pip", "install", "-q", "--constraint", ROOT / "constraints.txt", wheels["dcem_lab"])
    dcem = python.parent / "dcem"
    for command in (
        "train",
        "eval",
        "play",
        "report",
        "export",
        "ship",
        "bench",
        "reproduce",
        "sweep-status",
    ):
        assert "usage" in run(dcem, command, "--help").lower()
    done = subprocess.run([dcem, "train", "planet", "preset=tiny"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not installed; in a checkout, run pip install './lab[plot,suite]'" in done.stderr
    run(dcem, "train", "regression", "preset=tiny", f"run_dir={python.parent / 'run'}", "tensorboard=false")
