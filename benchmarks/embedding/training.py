"""The cartpole's latent action space, trained through a search with any soft top-k."""

import os
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

import dcem
from dcem.systems.cartpole import Cartpole
from operators import OPERATORS, Operator, matched
from serving import Reply, answer_requests, versions

HORIZON = 20
VALIDATION_SEED = 0  # of states and noise
FRESH_SEED = 1_000_000  # far from the seeds of trainings
DETACHED = "detached"  # dcem.lml, and no gradient through the search: what the operators' derivatives add


@dataclass(frozen=True)
class Settings:
    """A short version of the paper's training; `ess` samples count in effect, of N, whatever the operator."""

    updates: int = 150
    states: int = 8  # in an update
    latent_dim: int = 2
    hidden: tuple[int, ...] = (128, 128)
    lr: float = 1e-3
    max_grad_norm: float = 1.0
    n_samples: int = 100
    n_elite: int = 10
    n_iters: int = 5
    ess: float = 15.0
    sigma: float = 0.5
    validation_states: int = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Search(dcem.DCEM):
    """DCEM with another operator in place of LML."""

    operator: Operator

    def weights(self, values: Tensor, t: int) -> Tensor:
        spread = values.std(-1, correction=0, keepdim=True)
        return self.operator((values.mean(-1, keepdim=True) - values) / spread, self.n_elite, self.tau)


def operator_of(name: str) -> Operator:
    if name in ("lml", DETACHED):
        return lambda x, k, tau: dcem.lml(x, k, tau=tau)
    if name in OPERATORS:
        return OPERATORS[name]
    from peers import difftopk

    return {"network": difftopk.network, "SoftSort": difftopk.softsort}[name]


@cache
def temperature(name: str, settings: Settings) -> float:
    """At which weights of standard normal scores rest on `ess` samples: values are brought to that scale."""
    scores = torch.randn(64, settings.n_samples, generator=Generator().manual_seed(0))
    return matched(operator_of(name), scores, settings.n_elite, settings.ess)


def controller(name: str, settings: Settings, seed: int) -> dcem.MPC:
    """A new decoder, the same for every operator, and the search in its latent space."""
    torch.manual_seed(seed)
    force = Cartpole().max_force
    decoder = dcem.Decoder(settings.latent_dim, HORIZON, 1, -force, force, hidden=settings.hidden)
    solver = Search(
        n_samples=settings.n_samples,
        n_elite=settings.n_elite,
        n_iters=settings.n_iters,
        tau=temperature(name, settings),
        operator=operator_of(name),
        distribution=dcem.Gaussian(settings.sigma, bounds=(-1.0, 1.0), estimator="likelihood"),
    )
    mode = dcem.backward.Detach() if name == DETACHED else dcem.backward.Unroll()
    return dcem.MPC(
        Cartpole(), HORIZON, decoder.low, decoder.high, solver=solver, decoder=decoder, backward=mode
    )


def train(name: str, settings: Settings, seed: int) -> Reply:
    """The cost of plans before and after, on states and noise that are the same for all; CPU time."""
    mpc = controller(name, settings, seed)
    random, adam = Generator().manual_seed(seed), torch.optim.Adam(mpc.parameters(), lr=settings.lr)
    before, failures, start = validate(mpc, settings, VALIDATION_SEED), 0, time.process_time()
    for _ in range(settings.updates):
        states = Cartpole.initial_states(settings.states, generator=random)
        adam.zero_grad()
        mpc(states, generator=random).cost.mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(mpc.parameters(), settings.max_grad_norm)
        if norm.isfinite():
            adam.step()
        else:
            failures += 1
    seconds = time.process_time() - start
    return {
        "temperature": mpc.solver.tau,
        "cost before": before,
        "cost": validate(mpc, settings, VALIDATION_SEED),
        "cost on fresh states": validate(mpc, settings, FRESH_SEED),
        "updates without a finite gradient": failures,
        "CPU ms per update": 1e3 * seconds / settings.updates,
    }


@torch.no_grad()
def validate(mpc: dcem.MPC, settings: Settings, seed: int) -> float:
    random = Generator().manual_seed(seed)
    states = Cartpole.initial_states(settings.validation_states, generator=random)
    return mpc(states, generator=random).cost.mean().item()


def answer(do: str, contender: None = None, **request: Any) -> Reply:
    if do == "versions":
        return versions(("torch", "dcem", "difftopk", "diffsort"))
    request["settings"]["hidden"] = tuple(request["settings"]["hidden"])
    return train(request["name"], Settings(**request["settings"]), request["seed"])


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    answer_requests(answer)
