"""pytorch-mppi: a controller for one state, so it is given the double integrator and refines one plan.

The controller is made once; every call starts from a plan of zeros. `compiled` uses its own `compile()`,
for the dynamics and the cost of one step.
"""

import torch
from pytorch_mppi import MPPI

import problems
from measure import Job, serve


def mppi(problem: problems.DoubleIntegrator, temperature: float, compiled: bool = False) -> Job:
    horizon = problem.x0.shape[-1]
    controller = MPPI(
        problem.dynamics,
        problem.running_cost,
        nx=2,
        noise_sigma=problem.sigma**2 * torch.eye(1),
        num_samples=problem.n_samples,
        horizon=horizon,
        lambda_=temperature,
    )
    if compiled:
        controller.compile()

    def forward() -> torch.Tensor:
        controller.U = torch.zeros(horizon, 1)
        for _ in range(problem.n_iters):
            controller.command(problem.start, shift_nominal_trajectory=False)
        return controller.get_action_sequence().view(1, horizon)

    return Job(forward, problem.parameters)


if __name__ == "__main__":
    serve({"mppi": mppi}, packages=("pytorch-mppi",))
