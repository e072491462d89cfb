"""LML: laws that hold for every input."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from dcem import lml

scores = hnp.arrays(float, st.integers(2, 12), elements=st.floats(-50, 50, width=32)).map(torch.as_tensor)
temperatures = st.floats(0.05, 20)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, float, float]:
    """x (n,), k in (0, n], tau."""
    x = draw(scores)
    k = draw(st.one_of(st.integers(1, len(x)), st.floats(0.01, len(x))))
    return x, k, draw(temperatures)


@given(problems())
def test_weights_lie_in_the_unit_interval_and_sum_to_k(problem):
    x, k, tau = problem
    y = lml(x, k, tau)
    assert ((y >= 0) & (y <= 1)).all()
    assert abs(y.sum().item() - k) <= 1e-10 * k


@given(problems(), st.randoms(use_true_random=False))
def test_permutation_equivariance(problem, random):
    x, k, tau = problem
    order = torch.tensor(random.sample(range(len(x)), len(x)))
    assert torch.allclose(lml(x[order], k, tau), lml(x, k, tau)[order], atol=1e-10)


@given(problems(), st.floats(-1e4, 1e4))
def test_shift_invariance(problem, shift):
    x, k, tau = problem
    assert torch.allclose(lml(x + shift, k, tau), lml(x, k, tau), atol=1e-8)


@given(problems(), st.floats(1e-4, 1e4))
def test_scaling_scores_and_temperature_together_changes_nothing(problem, scale):
    x, k, tau = problem
    assert torch.allclose(lml(x * scale, k, tau * scale), lml(x, k, tau), atol=1e-9)


@given(problems())
def test_larger_scores_get_larger_weights(problem):
    x, k, tau = problem
    y = lml(x, k, tau)[x.argsort()]
    assert (y.diff() >= -1e-12).all()
    ties = x.sort().values.diff() == 0
    assert torch.allclose(y.diff()[ties], torch.zeros(int(ties.sum())).double(), atol=1e-12)


@given(problems(), st.data())
def test_raising_one_score_raises_its_weight_and_lowers_the_others(problem, data):
    x, k, tau = problem
    i = data.draw(st.integers(0, len(x) - 1))
    raised = x.clone()
    raised[i] += data.draw(st.floats(0.01, 10))
    change = lml(raised, k, tau) - lml(x, k, tau)
    assert change[i] >= -1e-10
    change[i] = 0
    assert (change <= 1e-10).all()


@given(problems(), st.floats(0, 1))
def test_a_larger_k_raises_every_weight(problem, share):
    x, k, tau = problem
    more = k + share * (len(x) - k)
    assert (lml(x, more, tau) >= lml(x, k, tau) - 1e-10).all()


@given(problems())
def test_complement(problem):
    """Choosing the k largest is leaving out the n - k smallest."""
    x, k, tau = problem
    if k < len(x) - 1e-3:
        assert torch.allclose(lml(x, k, tau), 1 - lml(-x, len(x) - k, tau), atol=1e-9)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12, unique=True), st.data())
def test_vanishing_temperature_is_the_top_k(values, data):
    x = torch.tensor(values, dtype=torch.float64)
    k = data.draw(st.integers(1, len(values)))
    expected = torch.zeros_like(x)
    expected[x.topk(k).indices] = 1
    assert torch.allclose(lml(x, k, tau=1e-2), expected, atol=1e-9)
    assert torch.equal(lml(x, k, tau=0), expected)


@given(problems())
def test_high_temperature_is_uniform(problem):
    x, k, _ = problem
    assert torch.allclose(lml(x, k, 1e12), torch.full_like(x, k / len(x)), atol=1e-9)


@given(problems())
def test_optimality(problem):
    """No feasible direction improves -x·y - tau H(y): its gradient is the same in every coordinate."""
    x, k, tau = problem
    y = lml(x, k, tau)
    inside = (y > 1e-6) & (y < 1 - 1e-6)
    dual = (tau * torch.logit(y) - x)[inside]
    assert dual.numel() < 2 or (dual.max() - dual.min()) <= 1e-6 * max(1.0, tau, x.abs().max().item())
