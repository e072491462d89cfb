"""What every test starts from: one thread, a fixed seed, reproducible Hypothesis examples."""

import signal
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch
from hypothesis import settings
from torch import Generator

from dcem_lab.runs.progress import Progress

torch.set_num_threads(1)
# A shell that starts the tests in the background has Ctrl-C ignored, in them and in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("dcem", deadline=None, derandomize=True, database=None)
settings.load_profile("dcem")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def generator() -> Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def double() -> Iterator[None]:
    """Tensors made without a dtype are float64 inside the test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ctrl-C at that step of whatever shows its progress."""

    def at(step: int) -> None:
        steps = count(1)

        def advance(self: Progress) -> None:
            if next(steps) == step:
                raise KeyboardInterrupt

        monkeypatch.setattr(Progress, "advance", advance)

    return at
