"""What tests of trainings look at."""

from collections.abc import Callable
from itertools import count

import pytest

from dcem.agents.collect import Collector
from dcem.runs.progress import Progress


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What planned every action that was taken while collecting; None for a random one."""
    seen: list[object] = []
    act = Collector.act
    monkeypatch.setattr(Collector, "act", lambda self, plan: seen.append(plan) or act(self, plan))
    return seen


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
