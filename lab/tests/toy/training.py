"""The toy experiment trained in this process, to its end or to a signal, and its figures."""

import os
import re
import signal
from pathlib import Path

from dcem_lab.runs import Run, read_records
from toy.experiment import Config, run


def train(folder, config: Config, **options) -> None:
    with Run(folder, config, experiment="toy", tensorboard=False, **options) as handle:
        run(config, handle)


def interrupted(folder, config: Config, step: int, *numbers: signal.Signals) -> None:
    """Train, and get the signals in the middle of a step."""
    with Run(folder, config, experiment="toy", tensorboard=False) as handle:
        write = handle.log

        def log(at, **scalars):
            write(at, **scalars)
            if at == step and "loss" in scalars:
                for number in numbers:
                    os.kill(os.getpid(), number)

        handle.log = log
        run(config, handle)


def figures(folder: Path) -> list[dict[str, float]]:
    """The log without what depends on the clock."""
    timed = re.compile(r"seconds|env_steps_per_s|ms/.*|eval/seconds")
    records = read_records(folder / "log.jsonl")
    return [{name: x for name, x in record.items() if not timed.fullmatch(name)} for record in records]
