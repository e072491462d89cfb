"""Checks of stored controllers from untrusted files: no imports of their choice, no memory beyond that of the
weights, no plans that never end, and no values of an unexpected type."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dcem_lab import experiments
from dcem_lab.runs import require
from dcem_lab.suite.agents.value import KINDS, Value
from dcem_lab.suite.rssm import RSSM, RSSMConfig

PLAN_LIMITS = {"samples": 100_000, "iterations": 1_000, "horizon": 1_000, "latent_points": 100}
"""Limits for a planner from a file; the paper's has 1,000, 10, 12 and 1."""

PLAN_STEPS = 10_000_000
"""Limit for samples × iterations × horizon × latent_points in a file; the paper's is 120,000."""

MOST_REPEATS = 1_000
"""Limit for the action repeat in a file."""

_DECODER = {
    **dict.fromkeys(("latent_dim", "horizon", "action_dim", "state_dim"), int),
    **dict.fromkeys(("low", "high"), float | tuple[float, ...]),
    "hidden": tuple[int, ...],
    "activation": str,
    "residual": bool,
}
_VALUE = {
    name: kind
    for name, kind in typing.get_type_hints(Value.__init__).items()
    if name not in ("generator", "return")
}


def check_experiment(name: object) -> None:
    """`experiments.load` imports any module by its path; a file may only name one of ours."""
    if name not in tuple(experiments.EXPERIMENTS):
        known = ", ".join(experiments.EXPERIMENTS)
        raise ValueError(f"a stored experiment must be one of {known}, got {name!r}")


def check_task(task: object, action_repeat: object) -> None:
    """Refuse a colon in the name: Gymnasium imports the module before it."""
    if not isinstance(task, str) or ":" in task:
        raise ValueError(f"a stored task must be a name without a module, got {task!r}")
    fits = action_repeat is None or (type(action_repeat) is int and 1 <= action_repeat <= MOST_REPEATS)
    require(fits, "a stored action_repeat", action_repeat, f"null or from 1 to {MOST_REPEATS:,}")


def check_planner(asked: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """ValueError where a file asks for plans beyond `PLAN_LIMITS`, but for what its user has `given`."""
    sizes = {name: asked[name] for name in PLAN_LIMITS if name not in given and type(asked.get(name)) is int}
    for name, value in sizes.items():
        most, option = PLAN_LIMITS[name], name.replace("_", "-")
        advice = f"at most {most:,} in a file (--{option} on the command line may be more)"
        require(value <= most, f"planner.{name}", value, advice)
    steps = math.prod(sizes.values())
    product = " × ".join(PLAN_LIMITS)
    require(steps <= PLAN_STEPS, f"planner's {product}", steps, f"at most {PLAN_STEPS:,} in a file")


def check_model(config: RSSMConfig, build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> None:
    """ValueError where the model that `config` describes has other sizes than its weights."""
    if config.layers > len(weights):
        raise ValueError(f"model.layers must be at most {len(weights)}, as many as there are weights")
    _check_sizes(build, weights)


def _check_sizes(build: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> None:
    with torch.device("meta"):  # where shapes cost nothing
        expected = {name: x.shape for name, x in build().state_dict().items()}
    for name, shape in expected.items():
        if name in weights and weights[name].shape != shape:
            raise ValueError(
                f"weights must fit the config, which says {tuple(shape)} for {name}, "
                f"got {tuple(weights[name].shape)}"
            )


def check_decoder(settings: Any, weights: Mapping[str, Tensor], model: RSSM) -> None:
    """ValueError where the decoder that `settings` describe has other sizes than its weights or its model."""
    _check_types(settings, _DECODER, "decoder")
    state_dim = settings.get("state_dim", 0)
    require(settings["latent_dim"] >= 1, "decoder.latent_dim", settings["latent_dim"], "at least 1")
    require(state_dim in (0, model.state_dim), "decoder.state_dim", state_dim, f"0 or {model.state_dim}")
    ours, action_dim = model.action_dim, settings["action_dim"]
    require(action_dim == ours, "decoder.action_dim", action_dim, f"the model's {ours}")
    sizes = [settings["latent_dim"] + state_dim, *settings["hidden"], settings["horizon"] * action_dim]
    found = [x.shape for name, x in weights.items() if name.endswith(".weight")]
    if [(b, a) for a, b in pairwise(sizes)] != [tuple(shape) for shape in found]:
        raise ValueError(f"decoder must fit its weights {[tuple(x) for x in found]}, got layers {sizes[:10]}")


def check_value(settings: Any, weights: Mapping[str, Tensor], model: RSSM) -> None:
    """ValueError where the critics and the actor that `settings` describe have other sizes than their weights
    or their model."""
    _check_types(settings, _VALUE, "value")
    for name, ours in (("features", model.features), ("action_dim", model.action_dim)):
        require(settings.get(name) == ours, f"value.{name}", settings.get(name), f"the model's {ours}")
    require(
        settings.get("values") in KINDS, "value.values", settings.get("values"), f"one of {', '.join(KINDS)}"
    )
    require(0 <= settings["gamma"] < 1, "value.gamma", settings["gamma"], "at least 0 and below 1")
    for name in ("reward_scale", "span"):
        require(settings[name] > 0, f"value.{name}", settings[name], "above 0")
    require(settings["critics"] >= 1, "value.critics", settings["critics"], "at least 1")
    build = partial(Value, **settings)
    with torch.device("meta"):
        names = build().state_dict().keys()
    require(weights.keys() == names, "value's weights", sorted(weights)[:10], "those of critics and actor")
    _check_sizes(build, weights)


def from_json(kind: Any, values: Any, name: str, changes: Mapping[str, Any] | None = None) -> Any:
    """The dataclass that `dcem_lab.runs.config.to_json` turned into these values, with `changes`.

    >>> from_json(RSSMConfig, {"hidden": "8"}, "model")
    Traceback (most recent call last):
    ValueError: model.hidden must be int, got '8'
    """
    _check_types(values, typing.get_type_hints(kind), name)
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return kind(**{**plain, **(changes or {})})


def _check_types(values: Any, hints: Mapping[str, Any], name: str) -> None:
    require(isinstance(values, dict), name, values, "an object of JSON")
    for key, value in values.items():
        require(key in hints, f"settings of {name}", key, f"among {', '.join(hints)}")
        hint = hints[key]
        said = hint.__name__ if isinstance(hint, type) else str(hint)
        require(_is(hint, value), f"{name}.{key}", value, said)


def _is(hint: Any, value: Any) -> bool:
    """Whether a value of JSON is of that type; numbers that no arithmetic can take are of none."""
    if isinstance(hint, types.UnionType):
        return any(_is(one, value) for one in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return isinstance(value, list) and all(_is(typing.get_args(hint)[0], one) for one in value)
    if hint is float and type(value) is not int:
        return type(value) is float and math.isfinite(value)
    return type(value) is (int if hint is float else hint) and (type(value) is not int or abs(value) < 2**63)
