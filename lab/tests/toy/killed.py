"""`dcem train` in a process that kills itself in the middle of a step."""

import os
import subprocess
import sys
from collections.abc import Sequence

_PROGRAM = """
import os, signal
from dcem_lab import cli
from {module} import {agent}
from dcem_lab.runs.folder import Run
step, steps, count = {agent}.step, Run.steps, []
Run.steps = lambda self, n, state, save_every: steps(self, n, state, save_every={save_every})
def killed(self):
    count.append(None)
    if len(count) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self)
{agent}.step = killed
cli.main(["train", *{words!r}])
"""


def train_until_killed(agent: type, at: int, words: Sequence[str], save_every: float) -> None:
    """Train with these words; the agent's ``at``-th step is its death, somewhere behind a checkpoint."""
    program = _PROGRAM.format(
        module=agent.__module__, agent=agent.__name__, at=at, words=list(words), save_every=save_every
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr
