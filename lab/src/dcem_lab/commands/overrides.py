"""`key=value` words into checked configs: one, or every combination of the values that a sweep lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from dcem_lab.commands.exits import UsageError, blamed_on_usage
from dcem_lab.commands.parser import near_settings
from dcem_lab.commands.values import listed, read, type_text
from dcem_lab.runs.config import changed, check_numbers, meant_by
from dcem_lab.runs.settings import known_settings, require
from dcem_lab.runs.state import MAX_SEED

_FEW = 20  # settings, that a sentence can list


def read_config(base: Any, words: Sequence[str], also: Sequence[str] = ()) -> Any:
    """`base` with what the words change; UsageError names the setting, what is allowed and what came.

    `also` names other words that the command line takes, which a misspelt setting may have meant.
    """
    for word, _, parts in map(_parsed, words):
        if len(parts) > 1:
            raise UsageError(f"{word} lists several values; add -m to run them all")
    return read_sweep(base, words, also)[0]


def read_sweep(base: Any, words: Sequence[str], also: Sequence[str] = ()) -> list[Any]:
    """The configs of the product of all listed values; those of the last word change fastest."""
    known = known_settings(type(base))
    values: dict[str, list[Any]] = {}
    for _, name, parts in map(_parsed, words):
        key = _whole_key(name, list(known), also)
        values[key] = [_value(key, part, known[key].type) for part in parts]
    return [_checked(base, dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]


def read_options(base: Any, texts: Mapping[str, str]) -> Any:
    """`base` with other values for those of its fields that have a text here, each the whole of it."""
    known = known_settings(type(base)).items()
    return _checked(base, {name: _value(name, texts[name], of.type) for name, of in known if name in texts})


def _parsed(word: str) -> tuple[str, str, list[str]]:
    """The word itself, the name in it, and the texts of the values that it lists."""
    name, equals, text = word.partition("=")
    if not equals:
        raise UsageError(f"{word!r} must be key=value")
    try:
        return word, name, listed(text)
    except ValueError as error:
        raise UsageError(f"{word} lists no values: {error}") from None


def _whole_key(name: str, keys: Sequence[str], also: Sequence[str]) -> str:
    meant = meant_by(name, keys)
    if len(meant) > 1:
        raise UsageError(f"{name!r} is ambiguous: it may be {' or '.join(meant)}")
    if meant:
        return meant[0]
    near = near_settings(name, [*keys, *also])
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    rest = f"settings: {', '.join(keys)}" if len(keys) <= _FEW else "--help lists all settings"
    raise UsageError(f"there is no setting {name!r}; {hint}{rest}")


def _value(key: str, text: str, kind: Any) -> Any:
    try:
        return read(text, kind)
    except ValueError:
        raise UsageError(f"{key} must be {type_text(kind)}, got {text or 'nothing'}") from None


def _checked(base: Any, changes: Mapping[str, Any]) -> Any:
    with blamed_on_usage(ValueError, TypeError):
        config = changed(base, changes)
        check_numbers(config)
        seed = getattr(config, "seed", 0)
        require(0 <= seed <= MAX_SEED, "seed", seed, f"from 0 to {MAX_SEED}")
        return config
