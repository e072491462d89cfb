"""The cartpole's latent action space (Section 5.2.1): a decoder trained through DCEM (Algorithm 2).

    dcem train cartpole latent_dim=8 tau=0.1 seed=2

τ = 0 is the paper's min-differentiation: vanilla CEM finds ẑ, and the decoder learns from the cost at ẑ as if
ẑ were a constant. `dcem_lab.cartpole.grid` trains a whole ablation at once, with the same code.

    dcem train cartpole preset=closed-loop

trains and validates on the states that the decoder visits in closed loop.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dcem import DCEM, MPC, Decoder, Gaussian, backward, capture
from dcem.systems.cartpole import Cartpole
from dcem_lab import pretrained
from dcem_lab.cartpole.driving import Carts, LoopValidation
from dcem_lab.cartpole.stack import DecoderStack
from dcem_lab.runs import Run, require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.training.devices import DEVICES, choose_device
from dcem_lab.training.members import MemberAdam, Plateau

HORIZON = 20
VALIDATION_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """Everything that the members of an ablation share; the defaults are the paper's.

    updates: total number of updates.
    states_per_update: states per update.
    fresh: fraction of the states that are random initial states; the others follow from the previous plans by
        one step.
    conditioned: condition the decoder on the state.
    lr: learning rate of Adam.
    max_grad_norm: maximum norm of the gradients.
    validate_every: updates between validations, which use the same states and noise each time. They evaluate
        single plans or, if fresh < 1, the closed loop.
    validation_states: initial states per validation.
    patience: validations without progress before the learning rate is halved.
    n_samples, n_elite, n_iters: setting of DCEM in the latent space.
    sigma: initial standard deviation of DCEM.
    hidden: widths of the decoder.
    compile: compile the objective with torch.compile: about a minute to start, then several times faster.
    device: auto uses CUDA if available.
    """

    updates: int = setting(100_000, least=1)
    states_per_update: int = setting(1, least=1)
    fresh: float = setting(1.0, above=0, most=1)
    conditioned: bool = False
    lr: float = setting(5e-4, above=0)
    max_grad_norm: float = setting(1.0, above=0)
    validate_every: int = setting(100, least=1)
    validation_states: int = setting(100, least=1)
    patience: int = setting(20, least=0)
    n_samples: int = setting(100, least=1)
    n_elite: int = setting(10, least=1)
    n_iters: int = setting(10, least=1)
    sigma: float = setting(0.5, above=0)
    hidden: tuple[int, ...] = setting((256, 256, 256), least=1)
    compile: bool = True
    device: str = setting("auto", among=DEVICES)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n_elite <= self.n_samples, "n_elite", self.n_elite, "at most n_samples")

    @property
    def torch_device(self) -> torch.device:
        return choose_device(self.device)


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """Train one decoder of the cartpole's plans through DCEM. The defaults are the paper's.

    latent_dim: size of the latent space.
    tau: temperature of DCEM; 0 for plain CEM.
    seed: seed of the initial weights and the random states.
    """

    latent_dim: int = setting(2, least=1)
    tau: float = setting(1.0, least=0)
    seed: int = 0


SMALL: dict[str, object] = {
    "updates": 6, "validate_every": 3, "validation_states": 4, "n_samples": 20, "n_elite": 4, "n_iters": 3,
    "hidden": (16, 16), "compile": False,
}  # fmt: skip
CLOSED_LOOP: dict[str, object] = {
    "conditioned": True, "fresh": 0.12, "states_per_update": 16, "updates": 4000, "lr": 1e-3,
    "hidden": (128, 128), "n_samples": 50, "n_elite": 5, "n_iters": 5, "validate_every": 250,
    "validation_states": 50, "patience": 1, "compile": False,
}  # fmt: skip
PRESETS: dict[str, dict[str, object]] = {
    "tiny": SMALL,
    "quick": {"updates": 200, "validate_every": 50, "compile": False},
    "closed-loop": {"latent_dim": 4, **CLOSED_LOOP},
}


@dataclass(frozen=True)
class Member:
    """One of the decoders that are trained together."""

    latent_dim: int
    tau: float
    seed: int

    @property
    def variant(self) -> str:
        return f"d{self.latent_dim}-tau{self.tau:g}"

    @property
    def name(self) -> str:
        return f"{self.variant}-seed{self.seed}"


def members_of(config: Mapping[str, Any]) -> list[Member]:
    """What a run with these settings trains: one decoder, or every one of a grid."""
    if "latent_dims" not in config:
        return [Member(config["latent_dim"], config["tau"], config["seed"])]
    return [Member(*one) for one in product(config["latent_dims"], config["taus"], config["seeds"])]


def run(config: Training, run: Run) -> None:
    """Train all members, independently of each other; their τ are all zero or all positive."""
    device, members = config.torch_device, members_of(vars(config))
    prefixes = [""] if isinstance(config, Config) else [f"{member.name}/" for member in members]
    generator = torch.Generator(device).manual_seed(run.config.seed)
    stack = DecoderStack([new_decoder(member, config) for member in members]).to(device)
    mpc = controller(stack, [member.tau for member in members], config)
    parameters = list(stack.parameters())
    optimizer = MemberAdam(parameters, config.lr, config.max_grad_norm).to(device)
    plateau = Plateau(len(members), config.patience)
    best = copy.deepcopy(stack)
    totals = torch.zeros(2, len(members), device=device)  # cost and gradient norm since the last validation
    holder = nn.Module()  # restores them in place, where a captured graph adds to them
    holder.register_buffer("tensor", totals)
    tally = {"best_cost": torch.full((len(members),), torch.inf)}
    carts = Carts(len(members), config.states_per_update, mpc.search_dim, config.fresh).to(device)
    validate = (
        Validation(mpc, len(members), config)
        if config.fresh == 1
        else LoopValidation(mpc, len(members), config.validation_states, device)
    )

    @torch.enable_grad()
    def update() -> None:
        states, start = carts.next_states(generator)
        plan = mpc(states, start=start, generator=generator)
        assert plan.cost is not None
        cost = plan.cost.mean(-1)  # (S,): rows are independent of each other
        gradients = torch.autograd.grad(cost.sum(), parameters)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
        finite = norm.isfinite()  # one exploded gradient must not ruin a member
        optimizer.step([torch.where(finite.view(-1, 1, 1), g, 0.0) for g in gradients])
        totals.add_(torch.stack([cost.detach(), torch.where(finite, norm, 0.0)]))
        carts.drive(states, plan)

    changes = [*parameters, *optimizer.buffers(), *carts.buffers(), totals]
    captured = capture(update, changes=changes, generator=generator, compile=False)
    state: dict[str, Any] = {
        "decoders": stack,
        "best": best,
        "optimizer": optimizer,
        "plateau": plateau,
        "carts": carts,
        "generator": generator,
        "totals": holder,
        "tally": tally,
    }
    for step in run.steps(config.updates, state):
        captured()
        if (step + 1) % config.validate_every == 0 or step + 1 == config.updates:
            cost = validate()
            _copy_rows(best, stack, cost < tally["best_cost"])
            tally["best_cost"] = torch.minimum(cost, tally["best_cost"])
            train_cost, grad_norm = (totals / (step % config.validate_every + 1)).cpu()
            totals.zero_()
            columns = {
                "validation_cost": cost,
                "best_cost": tally["best_cost"],
                "train_cost": train_cost,
                "grad_norm": grad_norm,
                "lr": optimizer.lr.cpu(),
            }
            overall = {"validation_cost": cost.mean(), "best_cost": tally["best_cost"].min()}
            figures = {
                f"{prefix}{name}": value
                for name, column in columns.items()
                for prefix, value in zip(prefixes, column, strict=True)
            }
            run.log(step + 1, **(overall | figures))
            optimizer.lr.mul_(plateau(cost).to(device))
    _save(run.folder / "decoders", members, best=best, last=stack)


def new_decoder(member: Member, config: Training) -> Decoder:
    """A decoder with the paper's initialisation, determined by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(member.seed)
        force = Cartpole().max_force
        seen = Cartpole.state_dim if config.conditioned else 0
        return Decoder(member.latent_dim, HORIZON, 1, -force, force, hidden=config.hidden, state_dim=seen)


def controller(decoder: Decoder | DecoderStack, taus: Sequence[float], config: Training) -> MPC:
    """Embedded control of the cartpole: DCEM, or CEM for τ = 0, over the latent box [-1, 1]^d.

    For a stack of decoders, `taus` has the temperature of each, all zero or all positive, and states are
    (S, B, 5).
    """
    tau: float | Tensor = taus[0]
    if len(set(taus)) > 1:
        tau = torch.tensor(taus, device=config.torch_device).unsqueeze(-1)
    return MPC(
        Cartpole(),
        HORIZON,
        decoder.low,
        decoder.high,
        solver=DCEM(
            n_samples=config.n_samples,
            n_elite=config.n_elite,
            n_iters=config.n_iters,
            tau=tau,
            normalize=True,
            distribution=Gaussian(config.sigma, bounds=(-1.0, 1.0), estimator="likelihood"),
        ),
        decoder=decoder,
        backward=backward.Unroll() if taus[0] > 0 else backward.Detach(),
        compile=config.compile,
    )


class Validation:
    """The mean cost (S,) of every member on the same initial states, searched with the same noise."""

    def __init__(self, mpc: MPC, members: int, config: Training) -> None:
        device, count = config.torch_device, config.validation_states
        states = validation_states(count).to(device)
        self.mpc = mpc
        self.states = states.expand(members, count, Cartpole.state_dim)
        random = torch.Generator().manual_seed(VALIDATION_SEED)
        shape = (config.n_iters, 1, count, config.n_samples, mpc.search_dim)
        self.noise = torch.randn(shape, generator=random).to(device).expand(-1, members, -1, -1, -1)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        cost = self.mpc(self.states, noise=self.noise).cost
        assert cost is not None
        return cost.mean(-1).cpu()


def validation_states(count: int = 100) -> Tensor:
    """The fixed initial states (count, 5) on which all cartpole controllers are compared."""
    return Cartpole.initial_states(count, generator=torch.Generator().manual_seed(VALIDATION_SEED))


def _save(folder: Path, members: Sequence[Member], **stacks: DecoderStack) -> None:
    folder.mkdir(exist_ok=True)
    for kind, stack in stacks.items():
        for s, member in enumerate(members):
            decoder = stack.decoder(s)
            pretrained.save(f"{member.name}-{kind}", decoder.settings, decoder.state_dict(), folder)


@torch.no_grad()
def _copy_rows(target: DecoderStack, source: DecoderStack, rows: Tensor) -> None:
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.copy_(torch.where(rows.to(old.device).view(-1, 1, 1), new, old))
