"""`key=value` words into checked configs, and sweeps over them. The one place that knows Hydra.

Hydra parses the words and checks their types against the dataclass, whose `__post_init__` checks ranges.
Nothing is ever instantiated from a `_target_`, and a single run has no files of Hydra's.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dcem_lab.commands.exits import UsageError
from dcem_lab.commands.parser import near_settings
from dcem_lab.runs.config import check_numbers, require
from dcem_lab.runs.seeds import MAX_SEED

_NAME = "dcem_experiment"
_FEW = 20  # settings, that a sentence can list


class Settings:
    """The settings of one experiment: a base config (the defaults, or a preset) and the words that change it.

    `also` names other words that the command line takes, which a misspelt setting may have meant.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     seed: int = 0
    ...     lr: float = 1e-3
    >>> Settings(Config()).config(["lr=0.1"])
    Config(seed=0, lr=0.1)
    >>> [config.seed for config in Settings(Config()).sweep(["seed=1,2"])]
    [1, 2]
    """

    def __init__(self, base: Any, also: Sequence[str] = ()) -> None:
        self.base, self.also = base, also
        self.fields = field_types(type(base))
        ConfigStore.instance().store(name=_NAME, node=_writable(OmegaConf.structured(base)))

    def config(self, words: Sequence[str]) -> Any:
        """The config that the words ask for; UsageError names the field, what is allowed and what came."""
        for override in self._parse(words):
            if override.is_sweep_override():
                raise UsageError(f"{override.input_line} lists several values; add -m to run them all")
        return self._compose([list(words)])[0]

    def sweep(self, words: Sequence[str]) -> list[Any]:
        """Every config of the product of the listed values, in the order in which Hydra launches them."""
        try:
            [jobs] = BasicSweeper.split_arguments(self._parse(words), max_batch_size=None)
        except HydraException as error:
            raise UsageError(f"the sweep cannot be run: {error}") from error
        return self._compose(jobs)

    def check_launcher(self, words: Sequence[str]) -> None:
        """UsageError unless Hydra accepts the words that choose and set up a launcher."""
        with hydra.initialize(version_base="1.3", config_path=None):
            try:
                hydra.compose(_NAME, list(words), return_hydra_config=True)
            except HydraException as error:
                raise UsageError(" ".join(f"{error} {error.__cause__ or ''}".split())) from error

    def from_hydra(self, composed: DictConfig) -> Any:
        """The dataclass that a composed Hydra config stands for."""
        config = _tuples_as_in(self.base, OmegaConf.to_object(composed))
        check_numbers(config)
        require(0 <= config.seed <= MAX_SEED, "seed", config.seed, f"from 0 to {MAX_SEED}")
        return config

    def _parse(self, words: Sequence[str]) -> list[Override]:
        parsed = []
        for word in words:
            try:
                override = OverridesParser.create().parse_override(word)
            except HydraException:
                raise UsageError(
                    f"{word!r} must be key=value (quote values with special characters)"
                ) from None
            if override.type != OverrideType.CHANGE:
                raise UsageError(f"{word!r} must be key=value: settings can be changed, not added or removed")
            self._check_key(override.key_or_group)
            parsed.append(override)
        return parsed

    def _check_key(self, key: str) -> None:
        if key in self.fields:
            return
        near = near_settings(key, [*self.fields, *self.also])
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        few = len(self.fields) <= _FEW
        rest = f"settings: {', '.join(self.fields)}" if few else "--help lists all settings"
        raise UsageError(f"there is no setting {key!r}; {hint}{rest}")

    def _compose(self, jobs: Sequence[list[str]]) -> list[Any]:
        configs = []
        with hydra.initialize(version_base="1.3", config_path=None):
            for words in jobs:
                try:
                    configs.append(self.from_hydra(hydra.compose(_NAME, words)))
                except (HydraException, OmegaConfBaseException) as error:
                    raise UsageError(self._wrong_type(error, words)) from error
                except (ValueError, TypeError) as error:
                    raise UsageError(_with_whole_key(str(error), words)) from error
        return configs

    def _wrong_type(self, error: Exception, words: list[str]) -> str:
        cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
        key = str(getattr(cause, "full_key", "")).split("[")[0]
        values = [word.split("=", 1)[1] for word in words if word.split("=", 1)[0] == key]
        if not values:
            return str(cause or error).splitlines()[0]
        return f"{key} must be {self.fields.get(key)}, got {values[-1]}"


def launch(
    job: Callable[[DictConfig], object],
    words: Sequence[str],
    launcher: Sequence[str],
    folder: Path,
    name: str,
) -> None:
    """Give every config of a sweep to `job`, through Hydra's launcher. `Settings` must hold the same base.

    `folder` is where launchers keep their own files (submission scripts, output of cluster jobs).
    """
    arguments = [
        *words,
        *launcher,
        f"hydra.sweep.dir={_quoted(str(folder))}",
        "hydra.sweep.subdir=.",
        "hydra.output_subdir=null",
        "hydra/job_logging=none",
        "hydra/hydra_logging=none",
        f"hydra.job.name={_quoted(name)}",
        "--multirun",
    ]

    @hydra.main(version_base="1.3", config_path=None, config_name=_NAME)
    def task(composed: DictConfig) -> None:  # of this module: Hydra looks for configs beside it
        job(composed)

    before, sys.argv = sys.argv, ["dcem", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here instead of being printed by Hydra
    try:
        task()
    finally:
        sys.argv = before


def field_types(config_type: Any) -> dict[str, str]:
    """Dotted field names and how to say what they take: `int`, `float or null`, `dcem or gd` (an enum)."""
    hints = typing.get_type_hints(config_type)
    found: dict[str, str] = {}
    for field in dataclasses.fields(config_type):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            found |= {f"{field.name}.{name}": text for name, text in field_types(hint).items()}
        else:
            found[field.name] = _type_text(hint)
    return found


def _type_text(hint: Any) -> str:
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(member.name for member in hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(map(_type_text, typing.get_args(hint)))
    if typing.get_origin(hint) in (list, tuple):
        return f"[{_type_text(typing.get_args(hint)[0])}, ...]"
    return getattr(hint, "__name__", str(hint))


def _with_whole_key(message: str, words: Sequence[str]) -> str:
    """A nested config knows its fields as `samples`; the command line knows them as `planner.samples`."""
    field, space, rest = message.partition(" ")
    keys = [word.partition("=")[0] for word in words]
    whole = next((key for key in keys if key.endswith(f".{field}")), field)
    return whole + space + rest


def _writable(node: Any) -> Any:
    """OmegaConf makes the fields of frozen dataclasses read-only, also for the command line."""
    OmegaConf.set_readonly(node, None)
    for key in node if isinstance(node, DictConfig) else range(len(node)):
        child = node._get_node(key)
        if isinstance(child, DictConfig | ListConfig) and not child._is_none():
            _writable(child)
    return node


def _tuples_as_in(like: Any, config: Any) -> Any:
    """OmegaConf returns lists where the dataclass has tuples."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        old, new = getattr(like, field.name), getattr(config, field.name)
        if dataclasses.is_dataclass(new):
            changes[field.name] = _tuples_as_in(old, new)
        elif isinstance(old, tuple) and isinstance(new, list):
            changes[field.name] = tuple(new)
    return dataclasses.replace(config, **changes)


def _quoted(text: str) -> str:
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"
