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

from dcem import experiments
from dcem.commands.exits import DONE, EXIT_CODES, FAILED, INTERRUPTED, UsageError
from dcem.runs import CheckpointError, Interrupted, Run, RunError, read_record
from dcem.runs.config import flatten, to_json, variant
from dcem.runs.record import RECORD

if TYPE_CHECKING:
    from dcem.commands.overrides import Settings

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

examples:
  dcem train regression --help                        every setting of this experiment
  dcem train cartpole preset=tiny                     see it work
  dcem train cartpole seed=1 time_limit=540           at most nine minutes, then again to go on
  dcem train regression method=gd,dcem seed=0,1,2 -m  six runs, one after the other
  dcem train regression 'seed=range(8)' -m hydra/launcher=joblib hydra.launcher.n_jobs=4
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
    options, launcher, words = _sort(given.settings)
    if launcher and not given.multirun:
        raise UsageError(f"{launcher[0]} is for sweeps; add -m")
    job = Job.plan(given.experiment, module, options, shlex.join(["dcem", "train", *arguments]))
    settings = _settings(job.base)
    configs = settings.sweep(words) if given.multirun else [settings.config(words)]
    if given.dry_run:
        for config in configs:
            print(f"{job.folder(config, given.multirun)}\n{json.dumps(to_json(config), indent=1)}")
        return DONE
    if given.multirun:
        from dcem.commands.sweep import sweep

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
        missing = error.name or "?"
        hint = (
            "" if name.startswith(missing) else "; pip install 'dcem[dmc]' has all that the experiments use"
        )
        raise UsageError(
            f"experiment {name!r} needs the module {missing!r}, which was not found{hint}"
        ) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dcem train",
        usage="dcem train EXPERIMENT [key=value ...] [-m]",
        description=f"{_DESCRIPTION}\nexperiments: {', '.join(experiments.EXPERIMENTS)}",
        epilog=_MORE_HELP + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
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
    title = f"settings of {name}, with their defaults"
    presets = "".join(
        f"  preset={preset}: {', '.join(f'{key}={_as_typed(value)}' for key, value in changes.items())}\n"
        for preset, changes in module.PRESETS.items()
    )
    defaults = {key: f"{key}={_as_typed(value)}" for key, value in flatten(settings.base).items()}
    width = max(map(len, defaults.values()))
    lines = [f"  {text:{width}}  ({settings.fields[key]})" for key, text in defaults.items()]
    about = (module.Config.__doc__ or "").strip()
    return f"\n{title}:\n" + "\n".join(lines) + f"\n\n{about}\n\npresets:\n{presets}"


def _sort(words: Sequence[str]) -> tuple[Options, list[str], list[str]]:
    """The words of the command line: our options, those for the launcher, settings of the experiment."""
    options: dict[str, str] = {}
    launcher, settings = [], []
    for word in words:
        key, equals, value = word.partition("=")
        if key in {field.name for field in dataclasses.fields(Options)} and equals:
            options[key] = value
        elif key.lstrip("+~").startswith(("hydra/", "hydra.")):
            launcher.append(word)
        else:
            settings.append(word)
    return Options.parse(options), launcher, settings


def _settings(base: Any) -> Settings:
    try:
        from dcem.commands.overrides import Settings
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the module {error.name!r} is not installed; pip install 'dcem[experiments]'"
        ) from error
    return Settings(base)


def _as_typed(value: Any) -> str:
    plain = to_json(value)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))


def _is_finished(folder: Path, config: Any) -> bool:
    if not (folder / RECORD).exists():
        return False
    record = read_record(folder)
    return record.get("status") == "finished" and record.get("config") == to_json(config)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
