"""The report of the cartpole study, from made-up results whose numbers are known."""

from pathlib import Path

import numpy as np
import pytest

from dcem_lab.cartpole.numbers import factors, in_words, read
from made_up import write_cartpole


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("results")
    write_cartpole(root)
    return root


def test_factors_and_verdicts(results):
    rows = {(row["latent dimension"], row["τ"]): row for row in factors(read(results))}
    assert len(rows) == 9
    row = rows["2", "1"]
    assert row["paper"] == "1.083" and row["ours"] == "1.133"
    spread = 4.3027 * 0.01 * 1.133 / np.sqrt(3)
    assert row["95% interval"] == f"[{1.133 - spread:.3f}, {1.133 + spread:.3f}]"
    assert row["verdict"] == "above, beyond the interval"
    assert rows["16", "0"]["verdict"] == "below, beyond the interval"
    assert row["fresh noise"].startswith(f"{9.5 / 9.046:.3f}")
    assert row["fresh states"].startswith(f"{9.5 / 9:.3f}")
    assert row["against the strong expert"].startswith("0.950")
    assert (row["one state per update"], row["stopped after"]) == ("1.000", "80,000")


def test_in_words(results):
    said = in_words(read(results))
    assert "for 3 of 3 latent dimensions" in said
    assert "(latent dimension 8) has a validation cost of -11.30" in said
    assert "with new noise its cost is -9.50 [-10.00, -9.00], with 1,000" in said
    assert "The strong expert has -10.00 [-10.00, -10.00] with 10,000." in said
