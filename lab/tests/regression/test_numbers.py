"""The report of the regression study, from made-up results whose numbers are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcem_lab.regression import numbers as regression
from made_up import write_regression


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_regression(tmp_path, "dcem", growth=1.0, at_minimum=0.95)
    write_regression(tmp_path, "gd", growth=1.2, at_minimum=0.1)
    write_regression(tmp_path, "gd-starts", growth=1.05, at_minimum=0.5)
    return tmp_path


def test_reads_what_was_written(results):
    dcem, gd, starts = regression.read_variants(results)
    assert [v.name for v in (dcem, gd, starts)] == ["dcem", "gd", "gd-starts"]
    assert gd.predictions.shape == (3, 30, 20)
    np.testing.assert_allclose(gd.error_at(10), [1e-4, 2e-4, 3e-4])
    np.testing.assert_allclose(gd.at_minimum, 0.1)
    np.testing.assert_allclose(((gd.predictions - gd.target) ** 2).mean(-1), gd.errors)
    assert dcem.surface.shape == (3, 12, 9)


def test_table_has_the_numbers_and_the_papers(results):
    rows = list(regression.table(regression.read_variants(results)))
    assert rows[0]["MSE"] == "2.0e-04 [1.0e-04, 3.0e-04]"
    assert rows[0]["the paper's there"] == "≈ 3e-4"
    assert rows[2]["the paper's there"] == "not reported"
    assert rows[0]["ratio"] == "1 [1, 1]"
    assert rows[1]["ratio"].startswith(f"{1.2**20:.3g} ")
    assert rows[0]["within 0.05 of a minimum"] == "95% [95%, 95%]"


def test_training_errors_are_compared_after_as_many_updates_as_the_papers(results):
    dcem = regression.read_variants(results)[0]
    steps = np.array([0, 30_000, 59_200, 60_000, 60_800, 100_000])
    curve = np.array([[9.0, 5.0, 1e-3, 1e-4, 1e-5, 1e-6]])
    longer = replace(dcem, steps=steps, curve=curve)
    np.testing.assert_allclose(longer.trained_for(), [1e-4])  # the geometric mean of three
    column = "training MSE at 60,000 updates"
    assert next(regression.table([longer]))[column] == "1.0e-04 [1.0e-04, 1.0e-04]"
    shorter = replace(dcem, steps=steps[:2], curve=curve[:, :2])
    assert next(regression.table([shorter]))[column] == "not reached"


def test_words_follow_the_numbers(tmp_path, results):
    text = " ".join(regression.sentences(regression.read_variants(results)))
    assert text.count("supported") == 3
    assert "95% and 10% of the predictions" in text
    assert "does not stay at minima" in text  # 1.05^20 is above 2
    write_regression(tmp_path / "other", "dcem", growth=1.2, at_minimum=0.2)
    write_regression(tmp_path / "other", "gd", growth=1.0, at_minimum=1.0)
    write_regression(tmp_path / "other", "gd-steps", growth=1.01, at_minimum=0.9)
    text = " ".join(regression.sentences(regression.read_variants(tmp_path / "other")))
    assert text.count("contradicted") == 3
    assert "random steps: also stays at minima" in text
    assert "needs the results of both" in next(regression.sentences(regression.read_variants(results)[:1]))


def test_says_that_there_are_no_results(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"regression must have results such as dcem/seed0"):
        regression.read_variants(tmp_path)
