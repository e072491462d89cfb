"""What tests of trainings look at."""

import pytest

from dcem_lab.suite.agents.collect import Collector


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What planned every action that was taken while collecting; None for a random one."""
    seen: list[object] = []
    act = Collector.act
    monkeypatch.setattr(Collector, "act", lambda self, plan: seen.append(plan) or act(self, plan))
    return seen
