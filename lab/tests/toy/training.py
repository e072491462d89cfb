"""The toy experiment trained in this process, to its end or to a signal, and its figures."""

import os
import signal

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


def figures(folder) -> list[dict[str, float]]:
    """The log without the seconds, which no two runs share."""
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in read_records(folder / "log.jsonl")
    ]
