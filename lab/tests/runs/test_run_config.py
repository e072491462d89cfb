"""Settings of a run: what they must be, and the names they give."""

import dataclasses
import re

import pytest

from dcem_lab.runs import require
from dcem_lab.runs.config import changed, check_numbers, meant_by, short_name, variant
from dcem_lab.runs.settings import Range
from toy.experiment import Config, Inner


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": float("inf")}, "lr must be finite, got inf"),
        ({"pause": float("nan")}, "pause must be finite, got nan"),
        ({"updates": 10**30}, "updates must be below .* in size"),
        ({"hidden": (4, 10**30)}, "hidden must be below .* in size"),
    ],
)
def test_numbers_nobody_can_use_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        check_numbers(Config(**change))
    check_numbers(Config())


def test_variants_are_named_by_what_they_change():
    base = Config()
    assert variant(base, base) == "default"
    assert variant(Config(seed=4), base) == "default"
    assert variant(base, base, "tiny") == "tiny"
    assert variant(Config(lr=0.5, hidden=(3, 4)), base) == "lr=0.5,hidden=3+4"
    assert variant(Config(lr=0.5), base, "tiny") == "tiny,lr=0.5"
    assert variant(Config(inner=Inner(0.5)), base) == "dropout=0.5"
    odd = [variant(Config(note=note), base) for note in ("a b", "a/b", "../a", "x" * 300, "x" * 301)]
    assert len(set(odd)) == 5
    assert all("/" not in name and " " not in name and len(name) < 120 for name in odd)


def test_a_name_is_as_long_as_it_must_be():
    keys = ["seed", "loop.n_envs", "planner.samples", "agent.planner.samples", "agent.seed"]
    shortest = ["seed", "n_envs", "planner.samples", "agent.planner.samples", "agent.seed"]
    assert [short_name(key, keys) for key in keys] == shortest
    assert meant_by("samples", keys) == ["planner.samples", "agent.planner.samples"]
    assert meant_by("planner.samples", keys) == ["planner.samples"]
    assert meant_by("envs", keys) == []


def test_changes_reach_nested_configs_and_errors_say_the_whole_name():
    assert changed(Config(), {"inner.dropout": 0.5, "lr": 1.0}) == Config(lr=1.0, inner=Inner(0.5))
    assert changed(Config(), {"inner": Inner(0.1), "inner.dropout": 0.5}) == Config(inner=Inner(0.5))
    with pytest.raises(ValueError, match=r"^inner.dropout must be at least 0 and below 1, got 7$"):
        changed(Config(), {"inner.dropout": 7})


@pytest.mark.parametrize(
    ("limits", "good", "bad", "text"),
    [
        ({"least": 1}, [1, 2, None], [0, float("nan")], "at least 1"),
        ({"above": 0, "most": 1}, [0.5, 1], [0, 1.5], "above 0 and at most 1"),
        ({"least": 0, "most": 2**32 - 1}, [2**32 - 1], [2**32], "at least 0 and at most 4294967295"),
        ({"among": ("a", "b")}, ["a"], ["c", ""], "one of a, b"),
        ({"least": 1}, [(), (1, 2)], [(0,)], "values at least 1"),
        ({"least": 1, "some": True}, [(1,)], [(), (2, 0)], "one or more values at least 1"),
        ({"among": ("a", "b")}, [(), ("b", "a")], [("a", "c")], "some of a, b"),
    ],
)
def test_ranges_are_held_and_said(limits, good, bad, text):
    for value in good:
        Range(**limits).check("x", value)
    for value in bad:
        with pytest.raises(ValueError, match=re.escape(f"x must be {text}, got {value!r}")):
            Range(**limits).check("x", value)


def test_lists_become_tuples_and_are_held_to_their_range():
    assert Config(hidden=[3, 4]) == Config(hidden=(3, 4))
    with pytest.raises(ValueError, match=r"hidden must be one or more values at least 1, got \(0,\)"):
        Config(hidden=[0])


def test_require():
    require(True, "x", 1, "anything")
    with pytest.raises(ValueError, match=r"^lr must be positive, got -1$"):
        require(False, "lr", -1, "positive")
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        dataclasses.replace(Config(), updates=0)
