"""What was trained, to evaluate it or to start a later phase from it: runs with a controller, what ships.

A run's checkpoint holds it as a `dcem_lab.suite.snapshots.Snapshots` under ``trained``, which describes
itself.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dcem import Decoder
from dcem_lab import pretrained
from dcem_lab.runs import CheckpointError, RunError, load_checkpoint, read_record, require
from dcem_lab.runs.record import RECORD
from dcem_lab.suite import trust
from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.envs.dmc import ControlEnv, make_env
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig

SNAPSHOTS = ("best", "last")


@dataclass(frozen=True)
class Pieces:
    """What a controller is made of, all but the weights.

    Attributes:
        task: a task of the control suite or a Gymnasium id.
        action_repeat: environment steps an action is held for; None for the task's own.
        model: the world model, with the pessimism to plan with.
        planner: how much to plan, in latent space where there is a decoder.
        decoder: `Decoder.settings`; None to plan over action sequences.
    """

    task: str
    action_repeat: int | None
    model: RSSMConfig
    planner: PlannerConfig
    decoder: dict[str, Any] | None = None

    def environment(self) -> Callable[..., ControlEnv]:
        """What makes one environment of the task; it takes a `render_mode`."""
        return partial(make_env, self.task, self.action_repeat)


@dataclass(frozen=True)
class Source:
    """A trained controller, on the processor, and what is left of its training.

    Attributes:
        pieces: what it is made of.
        model: the world model that plans, with its weights.
        decoder: the decoder that plans; None for one that plans over action sequences.
        replay: the state of the replay buffer (`ReplayBuffer.load_state_dict`); None where none was kept.
    """

    pieces: Pieces
    model: RSSM
    decoder: Decoder | None
    replay: dict[str, Tensor] | None

    @property
    def task(self) -> str:
        """The task it was trained for."""
        return self.pieces.task

    @property
    def planner(self) -> PlannerConfig:
        """How it plans when it is evaluated: in latent space where there is a decoder."""
        return self.pieces.planner


class Stored(NamedTuple):
    """A controller as it lies on the disk."""

    experiment: str
    config: dict[str, Any]
    """Of the experiment, as JSON."""
    pieces: dict[str, Any]
    """As JSON."""
    weights: dict[str, Tensor]
    """With the names of `flat_weights`."""
    replay: dict[str, Tensor] | None


def load_source(run_or_name: str | Path, snapshot: str = "best") -> Source:
    """The controller of a run folder or of weights that ship (`dcem_lab.pretrained`).

    `snapshot` chooses between the weights that were ``best`` at an evaluation while training and the
    ``last``; what ships has only one of them.

        source = load_source("runs/planet/best/seed0")
        model = source.model.to(device)
    """
    stored = read_stored(run_or_name, snapshot)
    trust.check_experiment(stored.experiment)
    pieces = from_json(Pieces, stored.pieces)
    model_weights, decoder_weights = (_under(name, stored.weights) for name in ("model", "decoder"))
    trust.check_task(pieces.task)
    decoder = None
    if pieces.decoder is not None:
        trust.check_decoder(pieces.decoder, decoder_weights)
        decoder = Decoder(**pieces.decoder)
        decoder.load_state_dict(decoder_weights)
    return Source(pieces, _model(pieces.model, model_weights), decoder, stored.replay)


def require_source(name: str, snapshot: str = "best") -> Source:
    """`load_source` for a config that names one in ``from``: whatever is wrong is a ValueError."""
    known = pretrained.available()
    if not name or not (is_run(name) or name in known):
        raise ValueError(
            f"from must be a run folder or the name of weights that ship ({', '.join(known)}), got {name!r}"
        )
    try:
        return load_source(name, snapshot)
    except (pretrained.PretrainedError, CheckpointError, RunError) as error:
        raise ValueError(str(error)) from error


def require_replay(
    source: Source, name: str, n_envs: int | None, lengths: Mapping[str, int]
) -> dict[str, Tensor]:
    """Its replay buffer, if so many environments can go on with it and sample chunks of these lengths."""
    replay, model = source.replay, source.model
    if replay is None:
        raise ValueError(f"keep_replay must be false: {name} has no replay buffer")
    theirs, capacity = replay["rewards"].shape
    require(n_envs in (theirs, None), "n_envs", n_envs, f"{theirs}, as in the replay of {name} that is kept")
    buffer = ReplayBuffer(
        theirs, capacity, model.obs_dim, model.action_dim, shortest_episode=min(lengths.values())
    )
    buffer.load_state_dict(replay)
    buffer.close_episodes()
    for setting, length in lengths.items():
        fits = int(buffer.n_starts(length)) > 0
        longest = f"below the steps of some episode in the replay of {name}"
        require(fits, setting, length, longest)
    return replay


def read_stored(run_or_name: str | Path, snapshot: str = "best") -> Stored:
    """The same, not yet put together."""
    if snapshot not in SNAPSHOTS:
        raise ValueError(f"snapshot must be one of {', '.join(SNAPSHOTS)}, got {snapshot!r}")
    if is_run(run_or_name):
        return _read_run(Path(run_or_name), snapshot)
    entry, weights = pretrained.load(str(run_or_name))
    experiment = entry.get("experiment", "something else")
    if "pieces" not in entry:
        raise ValueError(f"{run_or_name} must be a controller with an environment, got one of {experiment}")
    return Stored(experiment, entry["config"], entry["pieces"], weights, replay=None)


def is_run(run_or_name: str | Path) -> bool:
    """Whether it is a run folder; else it can only be the name of weights that ship."""
    if not str(run_or_name):
        raise ValueError("a run folder or the name of weights that ship must be given, got nothing")
    if (Path(run_or_name) / RECORD).exists():
        return True
    if Path(run_or_name).exists():
        raise ValueError(f"{run_or_name} must be a run folder or a shipped model, but it has no {RECORD}")
    return False


def flat_weights(model: dict[str, Tensor], decoder: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """State dicts of model and decoder as one.

    >>> import torch
    >>> list(flat_weights({"gru.bias": torch.zeros(1)}, {"low": torch.zeros(1)}))
    ['model.gru.bias', 'decoder.low']
    """
    named = {"model": model, "decoder": decoder or {}}
    return {f"{part}.{name}": x for part, state in named.items() for name, x in state.items()}


def from_json(kind: Any, values: dict[str, Any]) -> Any:
    """The dataclass that `dcem_lab.runs.config.to_json` turned into these values."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in values.items()})


def _read_run(folder: Path, snapshot: str) -> Stored:
    record = read_record(folder)
    experiment, config = record["experiment"], record["config"]
    tree: Any = load_checkpoint(folder).tree
    objects = tree["objects"]
    replay = objects.get("agent", {}).get("replay")
    if "trained" not in objects:
        raise ValueError(f"{folder} must be a run with a controller, got one of {experiment}")
    trained = objects["trained"]
    weights = trained[snapshot] if trained["best"] is not None else trained["last"]
    return Stored(experiment, config, trained["pieces"], flat_weights(**weights), replay)


def _model(config: RSSMConfig, weights: dict[str, Tensor]) -> RSSM:
    features = len(weights["normalizer.mean"])
    action_dim = weights["gru.input_weight"].shape[1] - features
    build = partial(RSSM, features - len(config.angles), action_dim, config)
    trust.check_model(config, build, weights)
    model = build()
    model.load_state_dict(weights)
    return model


def _under(part: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): x for name, x in weights.items() if name.startswith(f"{part}.")}


def _value(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint[value]
    return tuple(value) if isinstance(value, list) else value
