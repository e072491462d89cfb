"""Settings of a run: what they must be, and the names they give."""

import dataclasses

import pytest

from dcem_lab.runs import require
from dcem_lab.runs.config import check_numbers, variant
from toy.experiment import Config


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
    odd = [variant(Config(note=note), base) for note in ("a b", "a/b", "../a", "x" * 300, "x" * 301)]
    assert len(set(odd)) == 5
    assert all("/" not in name and " " not in name and len(name) < 120 for name in odd)


def test_require():
    require(True, "x", 1, "anything")
    with pytest.raises(ValueError, match=r"^lr must be positive, got -1$"):
        require(False, "lr", -1, "positive")
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        dataclasses.replace(Config(), updates=0)
