"""Which weights of a controller are kept."""

import math

import pytest

from dcem_lab.suite.agents import PlannerConfig
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.snapshots import Snapshots
from dcem_lab.suite.source import Pieces


@pytest.fixture
def trained() -> Snapshots:
    model = RSSM(2, 1, RSSMConfig(hidden=4, width=4))
    return Snapshots(Pieces("task", None, model.config, PlannerConfig()), model)


def test_a_score_of_nan_is_never_the_best(trained: Snapshots) -> None:
    assert not trained.keep_if_best(math.nan)
    assert (trained.state_dict()["best"], trained.score) == (None, -math.inf)
    assert trained.keep_if_best(1.0)
    assert not trained.keep_if_best(math.nan)
    assert trained.score == 1.0
