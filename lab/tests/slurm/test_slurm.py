"""Sweeps on a real SLURM of one node: preempted, out of time, failed and killed jobs.

    make test-slow, or: python -m pytest -c lab/pyproject.toml -m slow lab/tests/slurm

`cluster.sh` beside this file starts the cluster; where it cannot, the tests are skipped with its reason. What
happened is written to lab/results/reliability/slurm.log where SLURM_TEST_LOG names that file.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcem_lab.runs import load_checkpoint, read_record, read_records
from toy.experiment import Config

pytestmark = [pytest.mark.slow, pytest.mark.process]
SCRIPT = Path(__file__).with_name("cluster.sh")
TOY = "toy.experiment"


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment in which SLURM's commands find the cluster."""
    pytest.importorskip("submitit")
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # pytest's own folders are closed to the user munge
    started = subprocess.run(["bash", SCRIPT, "start", folder], capture_output=True, text=True, timeout=300)
    if started.returncode == 77:
        pytest.skip(started.stderr.strip().splitlines()[-1])
    assert started.returncode == 0, started.stderr
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    note(subprocess.run(["sinfo", "--version"], env=environment, capture_output=True, text=True).stdout)
    yield environment
    subprocess.run(["scancel", "--user=root", "--full"], env=environment, timeout=60)
    subprocess.run(["bash", SCRIPT, "stop", folder], check=True, timeout=60)


def note(text: str) -> None:
    """For the log that is kept."""
    path = os.environ.get("SLURM_TEST_LOG")
    if path and text.strip():
        with Path(path).open("a") as log:
            log.write("".join(f"{time.strftime('%H:%M:%S')}  {line}\n" for line in text.strip().splitlines()))


class Sweep:
    """`dcem train ... -m` on the cluster, in a process of its own, and the folders of its runs."""

    def __init__(self, environment: dict[str, str], root: Path, *words: str) -> None:
        self.root, self.environment = root, environment
        launcher = ["launcher=slurm", "partition=low"]
        command = ["train", TOY, "tensorboard=false", f"run_dir={root}", *words, "-m", *launcher]
        note(f"$ dcem {' '.join(command)}".replace(str(root), "RUNS"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dcem_lab", *command, "cpus_per_task=1"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *words: str, quiet: bool = False) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if not quiet:
            note(f"$ {' '.join(words)}\n{done.stdout}".replace(str(self.root), "RUNS"))
        return done.stdout

    def result(self, timeout: float = 240) -> tuple[int, list[str], str]:
        """Exit code, the lines that list the runs, and what was said."""
        shown, errors = self.process.communicate(timeout=timeout)
        listed = [line for line in shown.splitlines() if str(self.root) in line]
        note("\n".join([*listed, f"exit code {self.process.returncode}"]).replace(str(self.root), "RUNS"))
        words = ["dcem_lab", "sweep-status", str(self.root), "--metric", "loss"]
        shown = self.command(sys.executable, "-m", *words, quiet=True)
        note(f"$ dcem sweep-status RUNS --metric loss\n{shown}")
        return self.process.returncode, listed, errors

    def folder(self, seed: int) -> Path:
        return next(self.root.glob(f"*/seed{seed}"))

    def wait(self, holds, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while not holds():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, f"waited {timeout} s in vain"
            time.sleep(0.2)

    def has_logged(self, seed: int, step: int) -> bool:
        paths = list(self.root.glob(f"*/seed{seed}/log.jsonl"))
        return bool(paths) and any(row["step"] >= step for row in read_records(paths[0]))


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_records(folder / "log.jsonl") if "loss" in row]


def unbroken(folder: Path, config: Config) -> list[float]:
    from dcem_lab.runs import Run
    from toy.experiment import run

    with Run(folder, config, tensorboard=False) as handle:
        run(config, handle)
    return losses(folder)


def test_a_preempted_job_is_requeued_and_resumes(cluster, tmp_path):
    """A job of a higher partition takes the node: SIGTERM, ten seconds of grace, SIGKILL, requeued."""
    note("--- preemption")
    words = ["updates=600", "pause=0.05", "save_every=1000", "seed=0,1"]
    sweep = Sweep(cluster, tmp_path / "runs", *words, "timeout_min=30")
    sweep.wait(lambda: all(sweep.has_logged(seed, 20) for seed in (0, 1)))
    sweep.command("squeue", "--format=%i %P %T %r")
    sweep.command("sbatch", "--partition=high", "--cpus-per-task=2", "--output=/dev/null", "--wrap=sleep 15")
    running = ["squeue", "--noheader", "--states=R", "--partition=low"]
    sweep.wait(lambda: not sweep.command(*running, quiet=True).strip())
    sweep.command("squeue", "--format=%i %P %T %r")
    saved = {seed: load_checkpoint(sweep.folder(seed)).step for seed in (0, 1)}
    note(f"saved by the preempted jobs, by seed: {saved}")
    code, listed, errors = sweep.result()
    assert code == 0, errors
    assert [line.split()[0] for line in listed] == ["finished", "finished"]
    for seed in (0, 1):
        assert len(read_record(sweep.folder(seed))["sessions"]) == 2
        assert 20 < saved[seed] < 600, "SIGTERM saves, though save_every is far away"
        exact = unbroken(tmp_path / f"unbroken{seed}", Config(seed=seed, updates=600))
        assert losses(sweep.folder(seed)) == exact
    note("both resumed from there, and every loss equals that of a run without interruption")


def test_a_failed_job_is_reported_and_the_others_go_on(cluster, tmp_path):
    note("--- two of four fail")
    sweep = Sweep(cluster, tmp_path / "runs", "preset=tiny", "seed=0,1", "fail_at=-1,3")
    code, listed, errors = sweep.result()
    assert code == 1, errors
    assert [line.split()[0] for line in listed] == ["finished", "failed", "finished", "failed"]
    assert all("ArithmeticError: asked to fail" in line for line in listed[1::2])


def test_a_job_out_of_time_is_queued_again_and_resumes(cluster, tmp_path):
    """A minute for each job, announced by SIGUSR2: the run is saved and submitit queues it again."""
    note("--- out of time")
    words = ["updates=700", "pause=0.05", "save_every=1000", "seed=0"]
    limits = ["timeout_min=1", "signal_delay_s=40"]
    sweep = Sweep(cluster, tmp_path / "runs", *words, *limits)
    code, listed, errors = sweep.result(timeout=400)
    assert code == 0, errors
    assert listed[0].startswith("finished")
    sessions = len(read_record(sweep.folder(0))["sessions"])
    note(f"it took {sessions} jobs")
    assert sessions >= 2
    assert losses(sweep.folder(0)) == unbroken(tmp_path / "unbroken", Config(updates=700))


def test_a_killed_job_is_reported_and_the_others_go_on(cluster, tmp_path):
    """scancel of one job: the sweep says so once its sibling is done, and the same command does the rest."""
    note("--- one of two is cancelled")
    words = ["updates=300", "pause=0.05", "seed=0,1"]
    sweep = Sweep(cluster, tmp_path / "runs", *words)
    sweep.wait(lambda: all(sweep.has_logged(seed, 10) for seed in (0, 1)))
    [job] = {name.split("_")[0] for name in sweep.command("squeue", "--noheader", "--format=%i").split()}
    sweep.command("scancel", f"{job}_0")
    code, listed, errors = sweep.result()
    note(errors.strip().splitlines()[-1].replace(str(sweep.root), "RUNS"))
    assert code == 1
    assert f"the launcher slurm failed: jobs were lost: {job}_0 (CANCELLED)" in errors
    assert [line.split()[0] for line in listed] == ["running", "finished"]
    again = Sweep(cluster, tmp_path / "runs", *words)
    code, listed, errors = again.result()
    assert code == 0, errors
    assert [line.split()[0] for line in listed] == ["finished", "finished"]
    assert json.loads((again.root / ".sweep" / "runs.json").read_text())
