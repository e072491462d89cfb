"""The text of a setting as a value of its type. Nothing is evaluated, and no name in it is looked up."""

from __future__ import annotations

import ast
import enum
import re
import types
import typing
from pathlib import Path
from typing import Any

# A text in quotes counts as one character, so that commas and brackets in it mean nothing.
_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)
_RANGE = re.compile(r"range\(\s*(-?\d+\s*(?:,\s*-?\d+\s*){0,2})\)")
_BOOLS = {"true": True, "false": False}
_NAMES: dict[Any, str] = {type(None): "null", bool: "true or false", Path: "a path"}


def listed(text: str) -> list[str]:
    """The values that a text lists: parts between commas, outside of quotes and brackets, or a range.

    ValueError where a range has none.

    >>> listed("[1,2],[3]"), listed("range(3)"), listed("'a,b'")
    (['[1,2]', '[3]'], ['0', '1', '2'], ["'a,b'"])
    """
    numbers = _RANGE.fullmatch(text.strip())
    if numbers:
        found = range(*map(int, numbers[1].split(",")))
        if not found:
            raise ValueError("the range is empty")
        return list(map(str, found))
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "[(") - (token in "])")
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def read(text: str, kind: Any) -> Any:
    """The value of type `kind` that a text stands for; ValueError where it stands for none.

    >>> read("[1,2]", tuple[int, ...]), read("null", float | None), read("'1, 2'", str)
    ((1, 2), None, '1, 2')
    """
    if _is_union(kind):
        for one in typing.get_args(kind):
            try:
                return read(text, one)
            except ValueError:
                continue
    elif typing.get_origin(kind) is tuple and text[:1] + text[-1:] == "[]":
        inner, (one, *_) = text[1:-1].strip(), typing.get_args(kind)
        return tuple(read(part, one) for part in listed(inner)) if inner else ()
    elif kind in (int, float):
        return kind(text)
    elif kind is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    elif kind is type(None) and text == "null":
        return None
    elif kind is Path and text:
        return Path(text)
    elif _is_enum(kind) and text in kind.__members__:
        return kind[text]
    elif kind is str and text != "null" and not text.startswith("["):
        quoted = text[:1] in ("'", '"') and _TOKEN.fullmatch(text)
        return str(ast.literal_eval(text)) if quoted else text
    raise ValueError(f"must be {type_text(kind)}, got {text or 'nothing'}")


def type_text(kind: Any) -> str:
    """How to say what a field takes: `int`, `float or null`, `dcem or gd` (an enum), `[int, ...]`."""
    if _is_enum(kind):
        return " or ".join(kind.__members__)
    if _is_union(kind):
        return " or ".join(map(type_text, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return f"[{type_text(typing.get_args(kind)[0])}, ...]"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _is_union(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)
