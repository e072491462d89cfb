"""The experiments that `dcem train` knows, one line each.

An experiment is a module with three names:

- `Config`: a frozen dataclass with a default for every field, `seed: int` among them. As a subclass of
  `dcem_lab.runs.settings.Settings` it has ranges beside its fields; combinations it checks in `__post_init__`
  (`dcem_lab.runs.require` words the errors);
- `PRESETS`: named changes to the defaults, for example `{"tiny": {"updates": 20, "planner.samples": 10}}`;
- `run(config, run)`: does the work, with `run: dcem_lab.runs.Run` for the loop, the log and the checkpoints;

and, if a config must be checked against something else (does the task exist?), a fourth: `check(config)`,
which raises ValueError before anything is started.

`tests/toy/experiment.py` is a small complete one.
"""

from __future__ import annotations

import difflib
import importlib
from typing import Any

EXPERIMENTS: dict[str, str] = {
    "regression": "dcem_lab.regression.experiment",
    "cartpole": "dcem_lab.cartpole.train",
    "cartpole-grid": "dcem_lab.cartpole.grid",
    "cartpole-baselines": "dcem_lab.cartpole.baselines",
    "planet": "dcem_lab.suite.planet",
    "embed": "dcem_lab.suite.embed",
    "ppo": "dcem_lab.suite.ppo",
    "agent": "dcem_lab.suite.agent",
}


def load(name: str) -> Any:
    """The module of an experiment, by its name here or, for one of your own, by its dotted module path."""
    if name not in EXPERIMENTS and "." not in name:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no experiment {name!r}; {hint}known: {', '.join(EXPERIMENTS)}")
    try:
        module = importlib.import_module(EXPERIMENTS.get(name, name))
    except ModuleNotFoundError as error:
        if name.split(".")[0] != error.name:  # something that the experiment needs
            raise
        raise ValueError(f"there is no module {name!r} to train") from error
    for needed in ("Config", "PRESETS", "run"):
        if not hasattr(module, needed):
            raise ValueError(f"{module.__name__} must define {needed} to be an experiment")
    return module
