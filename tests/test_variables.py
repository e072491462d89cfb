"""Variables that are not one row of numbers: other shapes, dicts, tuples and named tuples of tensors."""

from typing import NamedTuple

import pytest
import torch

import dcem


class Pose(NamedTuple):
    position: torch.Tensor
    angle: torch.Tensor


def pose_error(pose) -> torch.Tensor:
    position, angle = (pose["position"], pose["angle"]) if isinstance(pose, dict) else pose
    return (position - torch.tensor([0.3, -0.2])).square().sum(-1) + (angle - 0.5).square()


@pytest.mark.parametrize(
    "x0",
    [
        {"position": torch.zeros(4, 2), "angle": torch.zeros(4)},
        (torch.zeros(4, 2), torch.zeros(4)),
        [torch.zeros(4, 2), torch.zeros(4)],
        Pose(torch.zeros(4, 2), torch.zeros(4)),
    ],
    ids=["dict", "tuple", "list", "named tuple"],
)
def test_a_nesting_comes_back_as_it_went_in(x0):
    shapes = []

    def f(pose):
        leaves = pose.values() if isinstance(pose, dict) else pose
        shapes.append([tuple(leaf.shape) for leaf in leaves])
        return pose_error(pose)

    sol = dcem.minimize(f, dcem.DCEM(n_iters=20), x0)
    assert type(sol.x) is type(x0)
    assert shapes[0] == [(4, 100, 2), (4, 100)]
    position, angle = sol.x.values() if isinstance(x0, dict) else sol.x
    assert position.shape == (4, 2) and angle.shape == (4,)
    assert pose_error(sol.x).max() < 0.01


def test_it_is_the_same_search_as_over_one_tensor():
    noise = torch.randn(10, 4, 100, 3)
    nested = dcem.minimize(pose_error, dcem.DCEM(), (torch.zeros(4, 2), torch.zeros(4)), noise=noise)
    flat = dcem.minimize(
        lambda x: pose_error((x[..., :2], x[..., 2])), dcem.DCEM(), torch.zeros(4, 3), noise=noise
    )
    assert torch.equal(torch.cat([nested.x[0], nested.x[1][:, None]], -1), flat.x)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_points_may_be_matrices(batch):
    target = torch.randn(*batch, 3, 2)

    def f(x):
        return (x - target.unsqueeze(-3)).square().sum((-1, -2))

    sol = dcem.minimize(f, dcem.DCEM(n_samples=300, n_iters=30), torch.zeros(*batch, 3, 2), event_dims=2)
    assert sol.x.shape == target.shape and (sol.x - target).abs().max() < 0.1


def test_gradients_reach_what_the_objective_depends_on():
    theta = torch.tensor(0.3, requires_grad=True)
    x0 = {"a": torch.zeros(2, 1), "b": torch.zeros(2)}
    sol = dcem.minimize(
        lambda x: (x["a"][..., 0] - theta).square() + x["b"].square(), dcem.DCEM(n_iters=20), x0
    )
    (gradient,) = torch.autograd.grad(sol.x["a"].sum(), theta)
    assert abs(gradient - 2) < 0.1


@pytest.mark.parametrize(
    ("x0", "expected"),
    [
        ({"a": torch.zeros(2, 1), "b": torch.zeros(3)}, "share their first dimension"),
        ({"a": torch.zeros(2), "b": 1.0}, "must be a tensor, .*, got Tensor, float|got .*float"),
        ({}, "got nothing"),
        ((torch.zeros(2), torch.zeros(2, dtype=torch.long)), "floating-point tensor"),
    ],
)
def test_what_does_not_fit_is_named(x0, expected):
    with pytest.raises((TypeError, ValueError), match=expected):
        dcem.minimize(lambda x: x, dcem.DCEM(), x0)
