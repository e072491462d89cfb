"""cvxpylayers: the convex problems, a quadratic program and the projection with its entropy."""

import cvxpy
import torch
from cvxpylayers.torch import CvxpyLayer
from torch import Tensor

from energies import Projection, Quadratic
from judging import Layer, Torch, serve


def layers(problem: str) -> dict[str, Layer]:
    make = {"quadratic": quadratic, "projection": projection}.get(problem)
    return {"cvxpylayers": Torch(make())} if make else {}


def quadratic():
    """min ½‖J x + r‖², with J and r the residuals' own: linear in x, as cvxpylayers asks."""
    energy = Quadratic(torch)
    count = energy.steps * 6
    x, J, r = cvxpy.Variable(energy.n), cvxpy.Parameter((count, energy.n)), cvxpy.Parameter(count)
    program = cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(J @ x + r)))
    layer = CvxpyLayer(program, parameters=[J, r], variables=[x])

    def solve(theta: Tensor) -> Tensor:
        points = torch.cat([torch.zeros(1, energy.n), torch.eye(energy.n)])
        values = energy.residuals(points.expand(len(theta), -1, -1), theta)
        return layer((values[:, 1:] - values[:, :1]).mT, values[:, 0])[0]

    return solve


def projection():
    c, n = Projection.c, Projection.n
    x, theta = cvxpy.Variable(n), cvxpy.Parameter(n)
    # c H(x/c), up to a constant.
    entropy = cvxpy.sum(cvxpy.entr(x) + cvxpy.entr(c - x))
    program = cvxpy.Problem(cvxpy.Minimize(-theta @ x - entropy), [cvxpy.sum(x) == 1])
    layer = CvxpyLayer(program, parameters=[theta], variables=[x])
    return lambda theta: layer(theta)[0]


if __name__ == "__main__":
    serve(layers, packages=("cvxpylayers", "cvxpy", "diffcp", "moreau"))
