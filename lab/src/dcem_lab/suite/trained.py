"""A trained controller: one record for training, saving, loading, publishing and evaluating it.

A run saves it as ``trained`` among its objects, with a description; pretrained weights
(`dcem_lab.pretrained`) come with the same description. A file from elsewhere may contain anything:
`dcem_lab.suite.trust` checks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcem import Decoder
from dcem_lab import pretrained
from dcem_lab.runs import CheckpointError, RunError, load_checkpoint, read_record, require
from dcem_lab.runs.config import to_json
from dcem_lab.runs.record import RECORD
from dcem_lab.suite import trust
from dcem_lab.suite.agents import Controller, PlannerConfig, Value
from dcem_lab.suite.agents.planner import GUIDED
from dcem_lab.suite.agents.residual_decoder import stored_decoder
from dcem_lab.suite.envs.dmc import ControlEnv, make_env
from dcem_lab.suite.rssm import RSSM, RSSMConfig

SNAPSHOTS = ("best", "last")


@dataclass
class Trained:
    """A controller and the task that it is for.

    During training its weights keep changing. It keeps those of the best evaluation, since returns fluctuate.

        trained = Trained(task, action_repeat, planner, model, decoder)
        for step in run.steps(n, {"agent": agent, "trained": trained}):
            ...
            trained.keep_if_best(mean_return)

    Attributes:
        task: a task of the control suite or a Gymnasium id.
        action_repeat: environment steps an action is held for; None for the task's own.
        planner: how it plans when it is evaluated, in latent space where there is a decoder.
        model: the world model that plans; its config has the pessimism to plan with.
        decoder: the decoder that plans; None for one that plans over action sequences.
        value: critics at the end of its plans, and an actor to start them from; None to plan to the horizon
            alone.
        replay: the state of the replay buffer (`ReplayBuffer.load_state_dict`); None where none was kept.
        experiment, config: what trained it, as JSON; empty while it is being trained.
        score: of the best evaluation so far.
    """

    task: str
    action_repeat: int | None
    planner: PlannerConfig
    model: RSSM
    decoder: Decoder | None = None
    value: Value | None = None
    replay: dict[str, Tensor] | None = None
    experiment: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    score: float = field(default=-math.inf, init=False)
    _best: dict[str, Any] | None = field(default=None, init=False, repr=False)

    @property
    def networks(self) -> dict[str, nn.Module]:
        """All that has weights, by the names under which these are kept."""
        parts = {"model": self.model, "decoder": self.decoder, "value": self.value}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def description(self) -> dict[str, Any]:
        """All but the weights, as JSON."""
        return {
            "task": self.task,
            "action_repeat": self.action_repeat,
            "model": to_json(self.model.config),
            "planner": to_json(self.planner),
            "decoder": self.decoder.settings if self.decoder is not None else None,
            "value": self.value.settings if self.value is not None else None,
        }

    def to(self, device: torch.device) -> Trained:
        """Itself, with the weights on that device."""
        for network in self.networks.values():
            network.to(device)
        return self

    def environment(self) -> Callable[..., ControlEnv]:
        """A function that makes one environment of the task; it takes a `render_mode`."""
        return partial(make_env, self.task, self.action_repeat)

    def controller(self) -> Controller:
        """The controller that plays episodes."""
        return Controller(self.model, self.planner, decoder=self.decoder, value=self.value)

    def ship(self, name: str, folder: Path | str = pretrained.FOLDER) -> Path:
        """Keep the weights under a name that `load` takes; returns the file."""
        described = {"experiment": self.experiment, "config": self.config, "pieces": self.description}
        weights = {f"{part}.{key}": x for part, state in self._weights().items() for key, x in state.items()}
        return pretrained.save(name, described, weights, folder)

    def keep_if_best(self, score: float) -> bool:
        """Keep the weights if no evaluation scored as high before. Waits for the device if so.

        NaN is no score: nothing would ever beat it.
        """
        if not score > self.score:
            return False
        self.score, self._best = score, self._weights()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"pieces": self.description, "score": self.score, "best": self._best, "last": self._weights()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. The learners restore the weights themselves."""
        self.score, self._best = state["score"], state["best"]

    def _weights(self) -> dict[str, dict[str, Tensor]]:
        return {
            part: {name: x.detach().cpu().clone() for name, x in network.state_dict().items()}
            for part, network in self.networks.items()
        }


def load(
    run_or_name: str | Path, snapshot: str = "best", full_space: bool = False, **planner: Any
) -> Trained:
    """The controller of a run folder or of pretrained weights, on the CPU.

        trained = load("runs/planet/best/seed0").to(device)

    Args:
        run_or_name: a run folder, or a name that `dcem_lab.pretrained` knows.
        snapshot: the weights that were ``best`` at an evaluation while training, or the ``last``; what ships
            has only one of them.
        full_space: leave the decoder of a latent one away, and plan as much as the paper's full CEM, or as
            an agent with a value does.
        planner: changes to how it plans (``samples=100``). Only what a file asks for has limits.
    """
    require(snapshot in SNAPSHOTS, "snapshot", snapshot, f"one of {', '.join(SNAPSHOTS)}")
    read = _read_run if is_run(run_or_name) else _read_shipped
    try:
        experiment, config, description, weights, replay = read(str(run_or_name), snapshot)
        trust.check_experiment(experiment)
        trained = _put_together(description, weights, full_space, planner, str(run_or_name))
    except (pretrained.PretrainedError, CheckpointError, RunError):
        raise
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{run_or_name} must hold a whole controller, but in its files: {said}") from error
    trained.experiment, trained.config, trained.replay = experiment, config, replay
    return trained


def load_from(name: str, snapshot: str = "best", **planner: Any) -> Trained:
    """`load` for a config that names one in ``from``: whatever is wrong is a ValueError."""
    known = pretrained.available()
    if not name or not (is_run(name) or name in known):
        raise ValueError(
            f"from must be a run folder or the name of pretrained weights ({', '.join(known)}), got {name!r}"
        )
    try:
        return load(name, snapshot, **planner)
    except (pretrained.PretrainedError, CheckpointError, RunError) as error:
        raise ValueError(str(error)) from error


def is_run(run_or_name: str | Path) -> bool:
    """Whether it is a run folder; else it can only be the name of pretrained weights."""
    if not str(run_or_name):
        raise ValueError("a run folder or the name of pretrained weights must be given, got nothing")
    if (Path(run_or_name) / RECORD).exists():
        return True
    if Path(run_or_name).exists():
        raise ValueError(f"{run_or_name} must be a run folder or a shipped model, but it has no {RECORD}")
    return False


def _read_run(folder: str, snapshot: str) -> tuple[Any, ...]:
    """Experiment, config, description, weights and replay, as they lie on the disk."""
    record, tree = read_record(folder), load_checkpoint(folder).tree
    objects: Any = tree["objects"]  # type: ignore[index]
    if "trained" not in objects:
        raise ValueError(f"{folder} must be a run with a controller, got one of {record['experiment']}")
    saved, replay = objects["trained"], objects.get("agent", {}).get("replay")
    weights = saved[snapshot] if saved["best"] is not None else saved["last"]
    return record["experiment"], record["config"], saved["pieces"], weights, replay


def _read_shipped(name: str, _: str) -> tuple[Any, ...]:
    """The same of what ships, without a replay buffer."""
    entry, flat = pretrained.load(name)
    experiment = entry.get("experiment", "something else")
    if "pieces" not in entry:
        raise ValueError(f"{name} must be a controller with an environment, got one of {experiment}")
    weights: dict[str, dict[str, Tensor]] = {}
    for key, x in flat.items():
        part, _, inner = key.partition(".")
        weights.setdefault(part, {})[inner] = x
    return experiment, entry.get("config", {}), entry["pieces"], weights, None


def _put_together(
    description: dict[str, Any],
    weights: dict[str, dict[str, Tensor]],
    full_space: bool,
    changes: dict[str, Any],
    name: str,
) -> Trained:
    task, repeat = description["task"], description["action_repeat"]
    trust.check_task(task, repeat)
    asked, settings = description["planner"], description["decoder"]
    judging = description.get("value")  # older files have none
    if full_space:
        if settings is None:
            raise ValueError(
                f"full_space must be left out for {name}: it is for latent controllers, "
                "and this one has no decoder"
            )
        kept = {key: asked[key] for key in ("horizon", "dtype") if key in asked}
        asked, settings = {**(to_json(GUIDED) if judging is not None else {}), **kept}, None
    planner = trust.from_json(PlannerConfig, asked, "planner", changes)
    trust.check_planner(asked, changes)
    model = _model(trust.from_json(RSSMConfig, description["model"], "model"), weights["model"])
    trained = Trained(task, repeat, planner, model)
    if judging is not None:
        trust.check_value(judging, weights["value"], model)
        trained.value = Value(**judging)
        trained.value.load_state_dict(weights["value"])
    elif planner.policy_plans:
        raise ValueError(f"policy_plans must be 0 for {name}, which has no value, got {planner.policy_plans}")
    if settings is None:
        return trained
    trust.check_decoder(settings, weights["decoder"], model)
    trained.decoder = stored_decoder(settings)
    trained.decoder.load_state_dict(weights["decoder"])
    if judging is None and settings.get("residual"):
        raise ValueError(
            f"decoder.residual must be left out for {name}, which has no value to correct plans of"
        )
    if planner.horizon != trained.decoder.horizon:
        raise ValueError(
            f"horizon must be {trained.decoder.horizon}, that of the decoder of {name}, got {planner.horizon}"
        )
    return trained


def _model(config: RSSMConfig, weights: dict[str, Tensor]) -> RSSM:
    features = len(weights["normalizer.mean"])
    inputs = weights["gru.input_weight" if config.memory else "gru.new_weight"]
    action_dim = inputs.shape[1] - features
    build = partial(RSSM, features - len(config.angles), action_dim, config)
    trust.check_model(config, build, weights)
    model = build()
    model.load_state_dict(weights)
    return model
