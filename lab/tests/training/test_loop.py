"""The one training loop: when it looks at an agent, what a record is about, and updates that keep pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from dcem_lab.runs import Run, read_records
from dcem_lab.suite.agents import LearningConfig
from dcem_lab.training.fit import Fit
from dcem_lab.training.learners import Learners
from dcem_lab.training.loop import Schedule, train
from toy.experiment import Config


class Counter:
    """An agent that is as good as its number of steps modulo five."""

    steps, score = 0, -1.0

    def step(self) -> None:
        self.steps += 1

    def metrics(self) -> dict[str, float]:
        return {"steps": self.steps}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "score": self.score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.score = state["steps"], state["score"]

    def keep_if_best(self, score: float) -> bool:
        self.score = max(score, self.score)
        return self.score == score


def records(folder: Path, **schedule: Any) -> list[dict[str, float]]:
    agent = Counter()
    with Run(folder, Config(), tensorboard=False, bar=False) as run:
        plan = Schedule(env_steps=10, **schedule)
        train(run, agent, agent, lambda: {"eval/mean": float(agent.steps % 5)}, plan)
    timed = ("seconds", "env_steps_per_s")
    return [
        {name: x for name, x in row.items() if name not in timed}
        for row in read_records(folder / "log.jsonl")
    ]


def test_records_are_about_the_agent_after_a_step(tmp_path: Path) -> None:
    assert records(tmp_path, steps=7, evaluations={4, 7}, log_every=3) == [
        {"step": 2, "env_steps": 30, "steps": 3},
        {"step": 3, "env_steps": 40, "steps": 4, "eval/mean": 4, "eval/best": 4},
        {"step": 5, "env_steps": 60, "steps": 6},
        {"step": 6, "env_steps": 70, "steps": 7, "eval/mean": 2, "eval/best": 4},
    ]


def test_records_can_be_about_the_agent_before_a_step(tmp_path: Path) -> None:
    assert records(tmp_path, steps=3, evaluations={0, 2, 3}, beforehand=True) == [
        {"step": 0, "env_steps": 0, "steps": 1, "eval/mean": 0, "eval/best": 0},
        {"step": 1, "env_steps": 10, "steps": 2},
        {"step": 2, "env_steps": 20, "steps": 3, "eval/mean": 2, "eval/best": 2},
        {"step": 3, "env_steps": 30, "eval/mean": 3, "eval/best": 3},
    ]


class Line(Fit):
    """A number that goes to zero."""

    def __init__(self, tag: str, rate: float, update_every: int = 1) -> None:
        self.tag = tag
        self.line = nn.Linear(1, 1)
        config = LearningConfig(updates_per_step=rate)
        super().__init__(self.line, config, Generator(), update_every=update_every)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.line(torch.ones(1, 1)).square().sum() + 0 * torch.rand((), generator=self.generator)
        return loss, {"loss": loss.detach()}


@pytest.mark.parametrize(("rate", "updates"), [(0.0, 0), (0.5, 5), (1.0, 10), (2.25, 22)])
def test_updates_keep_pace_with_steps_also_across_a_checkpoint(rate: float, updates: int) -> None:
    def make() -> Learners:
        return Learners({"one": Line("", rate), "two": Line("two", 1.0)}, "cpu")

    learners = make()
    for step in range(10):
        learners.step()
        if step == 4:
            state, learners = learners.state_dict(), make()
            learners.load_state_dict(state)
    metrics = learners.metrics()
    assert (metrics["updates"], metrics["two/updates"]) == (updates, 10)
    assert {"two/loss", "two/gradient_norm", "ms/update", "ms/two_update"} <= metrics.keys()


def test_updates_in_turns_are_as_many_also_across_a_checkpoint() -> None:
    learner, updates = Line("", 1.5, update_every=4), []
    for step in range(10):
        learner.keep_pace()
        updates.append(learner.updates)
        if step == 5:
            state, learner = learner.state_dict(), Line("", 1.5, update_every=4)
            learner.load_state_dict(state)
    assert updates == [0, 0, 0, 6, 6, 6, 6, 12, 12, 12]
