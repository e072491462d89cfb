"""Is there one effective sample size that does what a tuned temperature does?

    python benchmarks/optimisers/temperatures.py --problems quadratic cartpole

Searches (a quadratic, plans for the cartpole) and short trainings through a search (an energy network that
learns x sin x, a latent space of plans for the cartpole) with temperatures and with effective sample sizes,
which are given as multiples of k.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(HERE)]

import dcem  # noqa: E402
import results  # noqa: E402
from dcem.systems import Cartpole  # noqa: E402
from machine import machine  # noqa: E402

SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    "paper, tau=1": lambda k: {"tau": 1.0, "normalize": True, "estimator": "likelihood"},
    "paper, tau=0.1": lambda k: {"tau": 0.1, "normalize": True, "estimator": "likelihood"},
    "normalize=True, tau=1": lambda k: {"tau": 1.0, "normalize": True},
    **{f"tau={tau}": lambda k, tau=tau: {"tau": tau} for tau in (1.0, 0.3, 0.1, 0.03)},
    **{f"ess={ratio}k": lambda k, ratio=ratio: {"ess": ratio * k} for ratio in (1.2, 1.5, 2.0, 4.0)},
}


def solver(setting: str, n_samples: int, n_elite: int, n_iters: int, sigma: float, **more: Any) -> dcem.DCEM:
    settings = SETTINGS[setting](n_elite)
    distribution = dcem.Gaussian(sigma, estimator=settings.pop("estimator", "rank-mu"), **more)
    sizes = {"n_samples": n_samples, "n_elite": n_elite, "n_iters": n_iters}
    return dcem.DCEM(**sizes, distribution=distribution, **settings)


def quadratic(setting: str, n_iters: int) -> float:
    """The median distance to the minimum of 200 quadratics of condition 10 in ten dimensions."""
    generator = torch.Generator().manual_seed(0)
    target = 2 * torch.rand(200, 1, 10, generator=generator) - 1
    scales = torch.logspace(0, 1, 10)
    search = solver(setting, 100, 10, n_iters, 1.0)
    with torch.no_grad():
        x = dcem.minimize(
            lambda x: (scales * (x - target).square()).sum(-1),
            search,
            torch.zeros(200, 10),
            generator=generator,
            cost=False,
        ).x
    return (x - target.squeeze(-2)).norm(dim=-1).median().item()


def plan(setting: str, n_iters: int) -> float:
    """The mean cost of plans of 20 forces from 64 states of the cartpole."""
    generator = torch.Generator().manual_seed(0)
    states = Cartpole.initial_states(64, generator=generator)
    mpc = dcem.MPC(Cartpole(), 20, -100.0, 100.0, solver=solver(setting, 100, 10, n_iters, 100.0))
    with torch.no_grad():
        return mpc(states, generator=generator).cost.mean().item()


def regression(setting: str, n_iters: int, updates: int = 300) -> float:
    """The mean squared error of an energy network after so many updates through the search, of two seeds."""
    errors = []
    for seed in range(2):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 1)
        )

        def predict(x: Tensor, net: nn.Module = net) -> Tensor:
            def energy(y: Tensor) -> Tensor:
                return net(torch.cat([x.unsqueeze(-2).expand(*y.shape[:-1], 1), y], -1)).squeeze(-1)

            return dcem.minimize(
                energy, solver(setting, 50, 5, n_iters, 7.0), torch.zeros_like(x), cost=False
            ).x

        optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(updates):
            x = 2 * math.pi * torch.rand(16, 1)
            loss = (predict(x) - x * x.sin()).square().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
        x = torch.linspace(0, 2 * math.pi, 100).unsqueeze(-1)
        with torch.no_grad():
            errors.append((predict(x) - x * x.sin()).square().mean().item())
    return sum(errors) / len(errors)


def embedding(setting: str, n_iters: int, updates: int = 200) -> float:
    """The mean cost of plans in a latent space that was learned through the search, of two seeds."""
    costs = []
    for seed in range(2):
        torch.manual_seed(seed)
        decoder = dcem.Decoder(
            latent_dim=8, horizon=20, action_dim=1, low=-100.0, high=100.0, hidden=(64, 64)
        )
        search = solver(setting, 50, 5, n_iters, 0.5, bounds=(-1.0, 1.0))
        mpc = dcem.MPC(Cartpole(), 20, -100.0, 100.0, solver=search, decoder=decoder)
        optimiser = torch.optim.Adam(decoder.parameters(), lr=3e-3)
        for _ in range(updates):
            loss = dcem.embedding_loss(mpc, Cartpole.initial_states(16))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
            optimiser.step()
        states = Cartpole.initial_states(100, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            costs.append(mpc(states).cost.mean().item())
    return sum(costs) / len(costs)


CASES = [
    ("quadratic", quadratic, 10),
    ("quadratic", quadratic, 50),
    ("cartpole", plan, 10),
    ("cartpole", plan, 50),
    ("regression, trained", regression, 10),
    ("latent plans, trained", embedding, 10),
]
COLUMNS = ("problem", "iterations", "setting", "result (lower is better)", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "temperatures.csv")
    names = sorted({name for name, _, _ in CASES})
    parser.add_argument("--problems", nargs="+", choices=names, default=names)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="SETTING")
    args = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine(threads=1) | {"torch": torch.__version__, "problems": args.problems}
    chosen = [case for case in CASES if case[0] in args.problems]
    for (name, measure, n_iters), setting in product(chosen, args.settings):
        start = time.process_time()
        result, seconds = measure(setting, n_iters), time.process_time() - start
        row = [name, n_iters, setting, f"{result:.3g}", f"{seconds:.2f}"]
        results.put(args.out, [dict(zip(COLUMNS, row, strict=True))], COLUMNS, COLUMNS[:3])
        print(*row, flush=True)
    args.out.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
