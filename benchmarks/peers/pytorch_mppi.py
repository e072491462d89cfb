"""pytorch-mppi: a controller for one state, so it is given the double integrator and refines one plan."""

import torch
from pytorch_mppi import MPPI

import problems
from measure import Job, serve


def mppi(problem: problems.DoubleIntegrator, temperature: float) -> Job:
    horizon = problem.x0.shape[-1]

    def forward() -> torch.Tensor:
        controller = MPPI(
            problem.dynamics,
            problem.running_cost,
            nx=2,
            noise_sigma=problem.sigma**2 * torch.eye(1),
            num_samples=problem.n_samples,
            horizon=horizon,
            lambda_=temperature,
            U_init=torch.zeros(horizon, 1),
        )
        for _ in range(problem.n_iters):
            controller.command(problem.start, shift_nominal_trajectory=False)
        return controller.get_action_sequence().view(1, horizon)

    return Job(forward, problem.parameters)


if __name__ == "__main__":
    serve({"mppi": mppi}, packages=("pytorch-mppi",))
