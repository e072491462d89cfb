"""`dcem train`: one run of an experiment, or a sweep of them, each in a folder that lets it resume."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcem_lab import experiments
from dcem_lab.commands.exits import DONE, FAILED, INTERRUPTED, UsageError, blamed_on_usage, missing
from dcem_lab.commands.launchers import LAUNCHERS, Launcher, Slurm
from dcem_lab.commands.overrides import read_config, read_options, read_sweep
from dcem_lab.commands.parser import Parser
from dcem_lab.commands.settings_help import settings_help
from dcem_lab.commands.sweep import sweep
from dcem_lab.runs import CheckpointError, Interrupted, Run, RunError, read_record
from dcem_lab.runs.config import changed, flatten, meant_by, to_json, variant
from dcem_lab.runs.settings import Settings, known_settings, setting

_DESCRIPTION = """\
Train an experiment. The run folder is runs/<experiment>/<variant>/seed<k>, named after the settings that
differ from the defaults. The same command resumes a run that was interrupted or crashed.
"""

_MORE_HELP = """\
in addition to the settings of the experiment:
  preset=NAME         start from a named set of values (tiny takes seconds)
  run_dir=DIR         the run folder; with -m, the folder that gets <variant>/seed<k> for every run
  time_limit=SECONDS  save and stop after this time; the same command then resumes
  tensorboard=false   write no TensorBoard files

sweeps: with -m, key=a,b,c runs every combination and lists the status of each at the end. The same command
then runs what is left. Runs are sequential unless you choose a launcher:
  launcher=joblib     in parallel, on all cores or jobs=N of them
  launcher=slurm      on a SLURM cluster, one job per run; options: partition, account, qos, constraint,
                      timeout_min, gpus_per_node, cpus_per_task, mem_gb, array_parallelism,
                      signal_delay_s and sbatch
"""

_EXAMPLES = """\
  dcem train regression --help                        every setting of this experiment
  dcem train cartpole preset=tiny                     see it work
  dcem train cartpole seed=1 time_limit=540           stop after nine minutes; repeat to resume
  dcem train regression method=gd,dcem seed=0,1,2 -m  six runs, one after the other
  dcem train regression 'seed=range(8)' -m launcher=joblib jobs=4
  dcem train embed from=runs/planet/best/seed0        start from another run
  dcem train planet seed=0,1 -m launcher=slurm timeout_min=240
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem train` with these arguments; returns the exit code, raises UsageError."""
    parser = _parser()
    given = parser.parse_intermixed_args(arguments)
    if given.help:
        print(_help(parser, given.experiment))
        return DONE
    if given.experiment is None:
        raise UsageError(f"name an experiment: {', '.join(experiments.EXPERIMENTS)}")
    module = load_experiment(given.experiment)
    options, launcher, words = _sort(given.settings, module, given.multirun)
    if options.launcher != "local" and not given.multirun:
        raise UsageError(f"launcher={options.launcher} is for sweeps; add -m")
    base = _with_preset(module, options.preset)
    deadline = None if options.time_limit is None else time.monotonic() + options.time_limit
    command = shlex.join(["dcem", "train", *arguments])
    job = Job(given.experiment, options, base, command, deadline, given.multirun)
    also = [*_names(Options), *_names(launcher), "from"]
    configs = read_sweep(base, words, also) if given.multirun else [read_config(base, words, also)]
    for config in configs:
        _check(module, config, on_this_machine=not isinstance(launcher, Slurm))
    if given.dry_run:
        for config in configs:
            print(f"{job.folder(config)}\n{json.dumps(to_json(config), indent=1)}")
        return DONE
    if given.multirun:
        return sweep(job, launcher, configs)
    return {"finished": DONE, "interrupted": INTERRUPTED, "failed": FAILED}[job.run(configs[0])]


def _help(parser: argparse.ArgumentParser, experiment: str | None) -> str:
    """For the command, or for an experiment as far as its module can be imported."""
    if experiment is None:
        return parser.format_help()
    try:
        return settings_help(experiment, load_experiment(experiment))
    except ModuleNotFoundError as error:
        return f"{parser.format_help()}\nsettings of {experiment}: {missing(error)}"


@dataclasses.dataclass(frozen=True)
class Options(Settings):
    """Options of `dcem train` in addition to the settings of the experiment and of the launcher."""

    preset: str | None = None
    run_dir: Path | None = None
    time_limit: float | None = setting(None, above=0)
    tensorboard: bool = True
    launcher: str = setting("local", among=LAUNCHERS)


@dataclasses.dataclass(frozen=True)
class Job:
    """How to run any config of one experiment: the same for a single run and for every run of a sweep."""

    experiment: str
    options: Options
    base: Any  # what the words on the command line change: the defaults, or a preset
    command: str
    deadline: float | None  # on time.monotonic's clock, which all processes of a machine share
    of_sweep: bool

    def variant(self, config: Any) -> str:
        return variant(config, self.base, self.options.preset)

    def folder(self, config: Any) -> Path:
        if self.options.run_dir is not None and not self.of_sweep:
            return self.options.run_dir
        root = self.options.run_dir or Path("runs", self.experiment)
        return root / self.variant(config) / f"seed{config.seed}"

    def is_finished(self, config: Any) -> bool:
        try:
            record = read_record(self.folder(config))
        except RunError:  # not begun; or not readable, which the run will say
            return False
        return record.get("status") == "finished" and record.get("config") == to_json(config)

    def run(self, config: Any) -> str:
        """Run one config, or resume it; returns `finished`, `interrupted` or `failed`."""
        folder = self.folder(config)
        if self.is_finished(config):
            _say(f"already finished: {folder} (delete it to run it again)")
            return "finished"
        about = {"experiment": self.experiment, "variant": self.variant(config), "command": self.command}
        limit = self.options.time_limit if self.deadline is None else self.deadline - time.monotonic()
        tensorboard, bar = self.options.tensorboard, False if self.of_sweep else None
        try:
            with Run(folder, config, **about, time_limit=limit, tensorboard=tensorboard, bar=bar) as run:
                load_experiment(self.experiment).run(config, run)
        except Interrupted as stop:
            _say(f"{stop}, in {folder}\nresume with: {self.command}")
            return "interrupted"
        except (RunError, CheckpointError, OSError) as error:
            if isinstance(error, RunError) and not self.of_sweep:
                raise  # the command asks for an unsuitable folder
            _say(f"failed: {error}")
            return "failed"
        except Exception:
            traceback.print_exc()
            _say(f"failed: {folder}")
            return "failed"
        _say(f"finished after {run.seconds:.1f} s: {folder}")
        return "finished"


def _with_preset(module: Any, preset: str | None) -> Any:
    if preset is not None and preset not in module.PRESETS:
        raise UsageError(f"preset must be one of {', '.join(module.PRESETS) or '(none)'}, got {preset}")
    return changed(module.Config(), module.PRESETS[preset] if preset else {})


def load_experiment(name: str) -> Any:
    with blamed_on_usage(ValueError):
        return experiments.load(name)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "train",
        f"{_DESCRIPTION}\nexperiments: {', '.join(experiments.EXPERIMENTS)}\n\n{_MORE_HELP}",
        _EXAMPLES,
        usage="dcem train EXPERIMENT [key=value ...] [-m]",
        add_help=False,
    )
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", nargs="?", help="a name from the list above, or your own module")
    add("settings", metavar="key=value", nargs="*", help="settings of the experiment")
    add("-m", "--multirun", action="store_true", help="sweep over lists of values")
    add("-n", "--dry-run", action="store_true", help="print folders and configs, run nothing")
    add("-h", "--help", action="store_true", help="show this help, with the settings of EXPERIMENT if given")
    return parser


def _sort(words: Sequence[str], module: Any, multirun: bool) -> tuple[Options, Launcher, list[str]]:
    """The words of the command line: our options, those of the launcher, settings of the experiment."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    options = read_options(Options(), given)
    launcher = read_options(LAUNCHERS[options.launcher](), given)
    taken, settings = (*_names(Options), *_names(launcher)), []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in taken:
            continue
        if equals and key == "from":  # commas in the name of a folder do not make a list
            as_given = multirun or value.startswith(("'", '"'))
            settings.append(f"source={value if as_given else repr(value)}")
            continue
        owner = next((name for name, other in LAUNCHERS.items() if key in _names(other)), None)
        if owner and not meant_by(key, known_settings(module.Config)):
            raise UsageError(f"{word} needs launcher={owner}")
        settings.append(word)
    return options, launcher, settings


def _names(settings: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(settings)]


def _check(module: Any, config: Any, on_this_machine: bool) -> None:
    """What a config cannot check by itself: the device, and what the experiment's own `check` looks at."""
    devices = [value for key, value in flatten(config).items() if key.split(".")[-1] == "device"]
    if on_this_machine and "cuda" in devices:
        import torch

        if not torch.cuda.is_available():
            raise UsageError("device must be cpu or auto here: there is no CUDA device, got cuda")
    if hasattr(module, "check"):
        with blamed_on_usage(ValueError):
            module.check(config)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
