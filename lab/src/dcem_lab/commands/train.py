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
from typing import TYPE_CHECKING, Any

from dcem_lab import experiments
from dcem_lab.commands.exits import DONE, FAILED, INTERRUPTED, UsageError, missing
from dcem_lab.commands.parser import Parser
from dcem_lab.commands.settings_help import settings_help
from dcem_lab.runs import CheckpointError, Interrupted, Run, RunError, read_record
from dcem_lab.runs.config import to_json, variant
from dcem_lab.runs.record import RECORD

if TYPE_CHECKING:
    from dcem_lab.commands.overrides import Settings

_DESCRIPTION = """\
Train an experiment. The run folder is runs/<experiment>/<variant>/seed<k>, named after the settings that
differ from the defaults. Started again, the same command goes on where it stopped, also after a crash.
"""

_MORE_HELP = """\
beside the settings of the experiment:
  preset=NAME         start from a named set of values (tiny takes seconds)
  run_dir=DIR         the run folder; with -m, the folder that gets <variant>/seed<k> for every run
  time_limit=SECONDS  stop in good order after so long; the same command then goes on
  tensorboard=false   write no TensorBoard files

sweeps: with -m, key=a,b,c runs every combination; the state of each is listed at the end, and the same
command runs what is left. hydra/launcher=joblib uses all cores, hydra/launcher=submitit_slurm a SLURM
cluster; hydra.launcher.KEY=VALUE sets their options (n_jobs; partition, timeout_min, gpus_per_node, ...).
"""

_EXAMPLES = """\
  dcem train regression --help                        every setting of this experiment
  dcem train cartpole preset=tiny                     see it work
  dcem train cartpole seed=1 time_limit=540           at most nine minutes, then again to go on
  dcem train regression method=gd,dcem seed=0,1,2 -m  six runs, one after the other
  dcem train regression 'seed=range(8)' -m hydra/launcher=joblib hydra.launcher.n_jobs=4
  dcem train embed from=runs/planet/best/seed0        start from what another run has learned
  dcem train planet seed=0,1 -m hydra/launcher=submitit_slurm hydra.launcher.timeout_min=240
"""


def main(arguments: Sequence[str]) -> int:
    """Run `dcem train` with these arguments; returns the exit code, raises UsageError."""
    parser = _parser()
    given = parser.parse_intermixed_args(arguments)
    if given.help:
        print(parser.format_help() + (_experiment_help(given.experiment) if given.experiment else ""))
        return DONE
    if given.experiment is None:
        raise UsageError(f"name an experiment: {', '.join(experiments.EXPERIMENTS)}")
    module = load_experiment(given.experiment)
    options, launcher, words = _sort(given.settings, given.multirun)
    if launcher and not given.multirun:
        raise UsageError(f"{launcher[0]} is for sweeps; add -m")
    job = Job.plan(given.experiment, module, options, shlex.join(["dcem", "train", *arguments]))
    settings = _settings(job.base)
    configs = settings.sweep(words) if given.multirun else [settings.config(words)]
    on_this_machine = not any("slurm" in word for word in launcher)
    for config in configs:
        _check(module, config, on_this_machine)
    if given.dry_run:
        for config in configs:
            print(f"{job.folder(config, given.multirun)}\n{json.dumps(to_json(config), indent=1)}")
        return DONE
    if given.multirun:
        from dcem_lab.commands.sweep import sweep

        return sweep(job, settings, configs, words, launcher)
    return {"finished": DONE, "interrupted": INTERRUPTED, "failed": FAILED}[job.run(configs[0])]


@dataclasses.dataclass(frozen=True)
class Options:
    """What `dcem train` takes beside the settings of the experiment."""

    preset: str | None = None
    run_dir: Path | None = None
    time_limit: float | None = None
    tensorboard: bool = True

    @staticmethod
    def parse(words: dict[str, str]) -> Options:
        limit, board = words.get("time_limit"), words.get("tensorboard", "true")
        try:
            seconds = None if limit is None else float(limit)
        except ValueError:
            seconds = 0.0
        if seconds is not None and not seconds > 0:
            raise UsageError(f"time_limit must be a positive number of seconds, got {limit}")
        if board not in ("true", "false"):
            raise UsageError(f"tensorboard must be true or false, got {board}")
        if words.get("run_dir") == "":
            raise UsageError("run_dir must name a folder, got nothing")
        folder = Path(words["run_dir"]) if "run_dir" in words else None
        return Options(words.get("preset"), folder, seconds, board == "true")


@dataclasses.dataclass(frozen=True)
class Job:
    """How to run any config of one experiment: the same for a single run and for every run of a sweep."""

    experiment: str
    options: Options
    base: Any  # what the words on the command line change: the defaults, or a preset
    command: str
    deadline: float | None  # on time.monotonic's clock, which all processes of a machine share

    @staticmethod
    def plan(experiment: str, module: Any, options: Options, command: str) -> Job:
        presets = module.PRESETS
        if options.preset is not None and options.preset not in presets:
            raise UsageError(f"preset must be one of {', '.join(presets) or '(none)'}, got {options.preset}")
        base = module.Config(**(presets[options.preset] if options.preset else {}))
        deadline = None if options.time_limit is None else time.monotonic() + options.time_limit
        return Job(experiment, options, base, command, deadline)

    def variant(self, config: Any) -> str:
        return variant(config, self.base, self.options.preset)

    def folder(self, config: Any, of_sweep: bool = False) -> Path:
        if self.options.run_dir is not None and not of_sweep:
            return self.options.run_dir
        root = self.options.run_dir or Path("runs", self.experiment)
        return root / self.variant(config) / f"seed{config.seed}"

    def run(self, config: Any, of_sweep: bool = False) -> str:
        """Run one config, or go on with it; returns `finished`, `interrupted` or `failed`."""
        folder = self.folder(config, of_sweep)
        limit = self.options.time_limit if self.deadline is None else self.deadline - time.monotonic()
        run = Run(
            folder,
            config,
            experiment=self.experiment,
            variant=self.variant(config),
            command=self.command,
            time_limit=limit,
            tensorboard=self.options.tensorboard,
            bar=False if of_sweep else None,
        )
        try:
            if _is_finished(folder, config):
                _say(f"already finished: {folder} (delete it to run it again)")
                return "finished"
            with run:
                load_experiment(self.experiment).run(config, run)
        except Interrupted as stop:
            _say(f"{stop}, in {folder}\ngo on with: {self.command}")
            return "interrupted"
        except RunError as error:
            if of_sweep:
                _say(f"failed: {error}")
                return "failed"
            raise UsageError(str(error)) from error
        except (CheckpointError, OSError) as error:
            _say(f"failed: {error}")
            return "failed"
        except Exception:
            traceback.print_exc()
            _say(f"failed: {folder}")
            return "failed"
        _say(f"finished after {run.seconds:.1f} s: {folder}")
        return "finished"


def load_experiment(name: str) -> Any:
    """`experiments.load`, with what is missing said in a sentence."""
    try:
        return experiments.load(name)
    except ModuleNotFoundError as error:
        if name.split(".")[0] == error.name:
            raise UsageError(f"there is no module {name!r} to train") from error
        raise missing(error, "[plot,suite]") from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "train",
        f"{_DESCRIPTION}\nexperiments: {', '.join(experiments.EXPERIMENTS)}\n\n{_MORE_HELP}",
        _EXAMPLES,
        usage="dcem train EXPERIMENT [key=value ...] [-m]",
        add_help=False,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", nargs="?", help="a name, or a module of your own")
    parser.add_argument("settings", metavar="key=value", nargs="*", help="settings of the experiment")
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep over lists of values")
    parser.add_argument("-n", "--dry-run", action="store_true", help="print folders and configs, run nothing")
    parser.add_argument("-h", "--help", action="store_true", help="with an experiment, its settings too")
    return parser


def _experiment_help(name: str) -> str:
    module = load_experiment(name)
    settings = _settings(module.Config())
    return settings_help(name, module.Config, settings.fields, module.PRESETS)


def _sort(words: Sequence[str], multirun: bool) -> tuple[Options, list[str], list[str]]:
    """The words of the command line: our options, those for the launcher, settings of the experiment."""
    options: dict[str, str] = {}
    launcher, settings = [], []
    for word in words:
        key, equals, value = word.partition("=")
        if key in {field.name for field in dataclasses.fields(Options)} and equals:
            options[key] = value
        elif key.lstrip("+~").startswith(("hydra/", "hydra.")):
            launcher.append(word)
        elif key == "from" and equals:
            settings.append(f"source={_path(value, multirun)}")
        else:
            settings.append(word)
    return Options.parse(options), launcher, settings


def _path(value: str, multirun: bool) -> str:
    """Commas and equals signs in the name of a run folder mean something to Hydra; quotes protect them."""
    if multirun or value[:1] in ("'", '"'):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _settings(base: Any) -> Settings:
    try:
        from dcem_lab.commands.overrides import Settings
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return Settings(base, also=[*(field.name for field in dataclasses.fields(Options)), "from"])


def _check(module: Any, config: Any, on_this_machine: bool) -> None:
    """What a config cannot check by itself: the device, and what the experiment's own `check` looks at."""
    if on_this_machine and getattr(config, "device", None) == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("device must be cpu or auto here: there is no CUDA device, got cuda")
    if hasattr(module, "check"):
        try:
            module.check(config)
        except ValueError as error:
            raise UsageError(str(error)) from error


def _is_finished(folder: Path, config: Any) -> bool:
    if not (folder / RECORD).exists():
        return False
    record = read_record(folder)
    return record["status"] == "finished" and record["config"] == to_json(config)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
