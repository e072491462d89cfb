"""Trees come back with the values, types and sharing they had."""

import collections
import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcem_lab.runs.files import seal, unseal
from dcem_lab.runs.tensors import read_tensors, write_tensors
from dcem_lab.runs.tree import decode, encode, tensor_names

DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, np.uint32, np.bool_, np.complex64]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    arrays,
    arrays.map(torch.from_numpy),
    st.floats(width=32).map(np.float32),
    st.integers(0, 255).map(np.uint8),
)
keys = st.one_of(st.text(), st.integers())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    """Equal in value, type and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(
            type(x) is type(y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


@settings(max_examples=150, deadline=None)
@given(tree=trees)
def test_a_tree_survives_the_disk(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    encoded, tensors = encode(tree)
    entry = write_tensors(folder / "data.safetensors", tensors)
    body = unseal(seal({"tree": encoded}))
    loaded = read_tensors(folder, entry)
    assert tensor_names(body["tree"]) == set(loaded)
    assert same(decode(body["tree"], loaded), tree)


def test_mappings_become_dicts_and_sizes_tuples():
    encoded, tensors = encode(collections.OrderedDict(a=torch.Size([2, 3])))
    assert decode(encoded, tensors) == {"a": (2, 3)}


def test_a_key_that_looks_like_a_marker_is_only_a_key():
    tree = {"$": "tensor", "name": "x"}
    encoded, tensors = encode(tree)
    assert tensor_names(encoded) == set()
    assert decode(encoded, tensors) == tree


def test_shared_and_strided_tensors(tmp_path):
    base = torch.arange(12.0)
    tree = {
        "whole": base,
        "same": base,
        "matrix": base.view(3, 4),
        "part": base[2:5],
        "transposed": base.view(3, 4).T,
        "grad": torch.ones(2, requires_grad=True),
        "reversed": np.arange(5)[::-1],
        "frozen": np.broadcast_to(np.float64(3.0), (2,)),
    }
    encoded, tensors = encode(tree)
    assert len(tensors) == len(tree) - 1, "a tensor that occurs twice is stored once"
    loaded = decode(encoded, read_tensors(tmp_path, write_tensors(tmp_path / "t.safetensors", tensors)))
    assert loaded["whole"] is loaded["same"]
    for name, value in tree.items():
        assert np.array_equal(loaded[name], value.detach() if isinstance(value, torch.Tensor) else value), (
            name
        )


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"model": {"f": print}}, "model.f .* got builtin_function_or_method"),
        ({"a": [1, {2, 3}]}, r"a\.1 .* got set"),
        ({"a": {(1, 2): 3}}, "keys at a must be strings or integers"),
        ({"a": np.array(["text"])}, "a must hold numbers"),
        ({"a": np.array([object()])}, "a must hold numbers"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "a has dtype torch.complex128"),
        ({"a": torch.eye(2).to_sparse()}, "a must be a dense tensor"),
        ({"a": collections.namedtuple("Pair", "x y")(1, 2)}, "got Pair"),
        (object(), "the tree must be .* got object"),
    ],
)
def test_what_cannot_be_stored_is_named(tree, words):
    with pytest.raises(TypeError, match=words):
        encode(tree)


@pytest.mark.parametrize(
    "encoded",
    [
        {"$": "tensor", "name": "missing"},
        {"$": "tensor", "name": ["x"]},
        {"$": "tensor"},
        {"$": "code", "value": "print(1)"},
        {"$": "dict", "items": [[[], 1]]},
        {"$": "dict", "items": 3},
        {"$": "tuple", "items": None},
        {"$": "float", "value": "x"},
        {"$": ["tensor"]},
    ],
)
def test_a_malformed_tree_is_refused(encoded):
    with pytest.raises(ValueError, match=r"tree|float"):
        decode(encoded, {"x": torch.ones(1)})
