"""Processes that hold one contender's environment each and answer measurements."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import environments

HERE = Path(__file__).resolve().parent
SOURCES = (str(environments.ROOT / "src"), str(HERE))  # for environments without the checkout


class WorkerError(Exception):
    """A contender failed; the message is one line for the table."""


class Worker:
    """`with Worker("theseus", threads=2) as worker: worker.ask("time", ...)`

    It runs the module `peers.<environment>`, or another one of another folder.
    """

    def __init__(self, environment: str, threads: int, module: str | None = None, folder: Path = HERE):
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the worker
        self._process = subprocess.Popen(
            [environments.python(environment), "-m", module or f"peers.{environment}"],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(SOURCES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, do: str, contender: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, "contender": contender, **settings}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died; its log says why
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": self._last_words()}
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else "the process ended without a word"
