"""Nested state as JSON plus named tensors, and back, with every type restored and nothing pickled."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

# Nested dicts, lists and tuples of tensors, NumPy arrays and scalars, numbers, strings, bools and None.
Tree = object

# A JSON object with this key stands for something JSON lacks; the value says what.
_KIND = "$"


def encode(tree: Tree) -> tuple[object, dict[str, Tensor]]:
    """The tree as JSON values, and its tensors by the path that leads to them.

    >>> encode({"lr": 0.1, "betas": (0.9, 0.99)})
    ({'lr': 0.1, 'betas': {'$': 'tuple', 'items': [0.9, 0.99]}}, {})
    """
    tensors: dict[str, Tensor] = {}
    return _encode(tree, "", tensors, {}), tensors


def decode(encoded: object, tensors: Mapping[str, Tensor]) -> Tree:
    """The tree that `encode` was given; ValueError when it asks for a tensor that is not there."""
    try:
        return _decode(encoded, tensors)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the tree is malformed: {type(error).__name__} {error}") from error


def tensor_names(encoded: object) -> set[str]:
    """The names of the tensors that an encoded tree refers to."""
    if isinstance(encoded, list):
        return set().union(*map(tensor_names, encoded))
    if isinstance(encoded, dict):
        if isinstance(encoded.get(_KIND), str) and "name" in encoded:
            return {str(encoded["name"])}
        return set().union(*map(tensor_names, encoded.values()))
    return set()


def _encode(node: Tree, path: str, tensors: dict[str, Tensor], stored: dict[object, str]) -> object:
    if node is None or isinstance(node, bool | str) or type(node) is int:
        return node
    if isinstance(node, Tensor):
        return {_KIND: "tensor", "name": _store(node, path, tensors, stored)}
    if isinstance(node, np.ndarray | np.generic):
        kind, tensor = "array" if isinstance(node, np.ndarray) else "scalar", _from_numpy(node, path)
        return {_KIND: kind, "name": _store(tensor, path, tensors, stored)}
    if type(node) is float:
        return node if math.isfinite(node) else {_KIND: "float", "value": str(node)}
    if isinstance(node, list):
        return [_encode(item, f"{path}.{i}", tensors, stored) for i, item in enumerate(node)]
    if isinstance(node, tuple) and not hasattr(node, "_fields"):
        items = [_encode(item, f"{path}.{i}", tensors, stored) for i, item in enumerate(node)]
        return {_KIND: "tuple", "items": items}
    if isinstance(node, Mapping):
        pairs = [(key, _encode(value, f"{path}.{key}", tensors, stored)) for key, value in node.items()]
        if all(type(key) is str and key != _KIND for key, _ in pairs):
            return dict(pairs)
        if all(isinstance(key, str | int | bool) for key, _ in pairs):
            return {_KIND: "dict", "items": [[key, value] for key, value in pairs]}
        raise TypeError(f"keys at {_where(path)} must be strings or integers, got {list(node)[:3]}")
    raise TypeError(
        f"{_where(path)} must be a dict, list, tuple, tensor, NumPy array, number, string, bool or None, "
        f"got {type(node).__name__}"
    )


def _decode(node: object, tensors: Mapping[str, Tensor]) -> Tree:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    kind = node.get(_KIND)
    if kind is None:
        return {key: _decode(value, tensors) for key, value in node.items()}
    if kind in ("tensor", "array", "scalar"):
        tensor = tensors[node["name"]]
        return tensor if kind == "tensor" else tensor.numpy() if kind == "array" else tensor.numpy()[()]
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in node["items"])
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in node["items"]}
    if kind == "float":
        return float(node["value"])
    raise ValueError(f"the tree has an entry of unknown kind {kind!r}")


def _store(tensor: Tensor, path: str, tensors: dict[str, Tensor], stored: dict[object, str]) -> str:
    """Put a tensor under its path; one that is stored already (tied weights) keeps its first name."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{_where(path)} must be a dense tensor, got layout {tensor.layout}")
    if tensor.dtype not in _STORABLE:
        raise TypeError(f"{_where(path)} has dtype {tensor.dtype}, which safetensors cannot store")
    identity = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if tensor.numel() and identity in stored:
        return stored[identity]
    name = path.removeprefix(".") or "tensor"
    while name in tensors:  # {1: ..., "1": ...} have the same path
        name += "'"
    tensors[name] = tensor
    stored[identity] = name
    return name


def _from_numpy(array: np.ndarray | np.generic, path: str) -> Tensor:
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        raise TypeError(f"{_where(path)} must hold numbers, got a NumPy array of {array.dtype}") from None


def _where(path: str) -> str:
    return path.removeprefix(".") or "the tree"


_STORABLE = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
)
