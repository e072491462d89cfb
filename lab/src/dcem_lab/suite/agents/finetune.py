"""The paper's phase 3: PPO through the planner, on chosen parts of it.

A step collects episodes, estimates advantages and makes some passes of updates over the episodes. An update
plans again from the stored model states, with the stored noise and with gradients:

    ρ = π_θ(u | s, ε) / π_old(u | s, ε),        π_θ(u | s, ε) = N(plan_θ(s, ε), σ²).

The denominator is computed by the same function on the same minibatches before the first update, so that ρ is
then exactly one, even if rounding differed in the batch of environments while acting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.autograd.graph import saved_tensors_hooks

from dcem import capture
from dcem_lab.suite.agents.experience import Gatherer
from dcem_lab.suite.agents.finetune_config import FinetuneConfig
from dcem_lab.suite.agents.policy import Critic, Policy
from dcem_lab.suite.envs.vector import ParallelEnv
from dcem_lab.suite.gae import advantages
from dcem_lab.suite.ppo_loss import clipped_fraction, clipped_loss, divergence, standardized, value_loss
from dcem_lab.suite.replay import ReplayBuffer, shortest_sampled
from dcem_lab.suite.rssm import multistep_loss
from dcem_lab.training.descent import descend
from dcem_lab.training.modes import by_name
from dcem_lab.training.stopwatch import Stopwatch

if TYPE_CHECKING:
    from dcem_lab.suite.trained import Trained


class Finetuner:
    """A controller in its environments, fine-tuned in place; the training loop only calls `step`.

    An update is one captured graph on a CUDA device, without synchronisation.

    Args:
        envs: E environments.
        controller: plans, on its device; the chosen parts of its model and decoder change, its value stays.
        config: how it learns.
        steps: T, of every environment in a step of the agent; an episode's length, in the paper.
        seed: of environments, planning, exploration, the value network and the order of minibatches.
    """

    def __init__(
        self, envs: ParallelEnv, controller: Trained, config: FinetuneConfig, steps: int, seed: int
    ) -> None:
        model, planner = controller.model, controller.planner
        self.config, self.device = config, next(model.parameters()).device
        config.check(envs.num_envs, steps, model.config.distance)
        seeds = np.random.SeedSequence(seed).generate_state(4) >> 1  # room to count on from there
        env_seed, play_seed, learn_seed, value_seed = seeds.tolist()
        self._play, self._learn = (
            Generator(self.device).manual_seed(drawn) for drawn in (play_seed, learn_seed)
        )
        backward = by_name(config.backward, config.kept, planner.iterations)
        self.policy = Policy(
            model, controller.decoder, planner, backward, config.std, config.learn_std, controller.value
        )
        self.critic = Critic(
            model.state_dim, config.gamma, config.value_width, Generator().manual_seed(value_seed)
        ).to(self.device)
        self._replay = None
        if config.likelihood:
            capacity = max(2, config.replay_steps // envs.num_envs)
            shortest = shortest_sampled(config.length, model.config.termination)
            self._replay = ReplayBuffer(
                envs.num_envs, capacity, model.obs_dim, model.action_dim, self.device, shortest
            )
        self.gatherer = Gatherer(envs, self.policy, steps, self._play, self._replay)
        self.gatherer.restart(env_seed)
        self.stopwatch = Stopwatch(self.device)
        parts = {
            "model": model, "decoder": controller.decoder, "critic": self.critic,
            "gatherer": self.gatherer, "replay": self._replay,
        }  # fmt: skip
        self._stateful: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}

        self._old = torch.zeros(steps * envs.num_envs, device=self.device)
        self._advantages, self._targets = torch.zeros_like(self._old), torch.zeros_like(self._old)
        trained = self.policy.train_only(config.parts)
        groups: list[dict[str, Any]] = [{"params": trained, "lr": config.lr}] if trained else []
        if config.learn_std:
            groups.append({"params": [self.policy.log_std], "lr": config.std_lr})
        self._parameters: list[Tensor] = [p for group in groups for p in group["params"]]
        self._values: list[Tensor] = list(self.critic.parameters())
        on_cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(groups, eps=1e-5, capturable=on_cuda)
        self.value_optimizer = torch.optim.Adam(self._values, config.value_lr, capturable=on_cuda)
        self._remember = capture(self._remember_old, eager=3, compile=False)
        self._update = capture(self._update_policy, generator=self._learn, eager=3, compile=False)
        self._update_value = capture(self._update_critic, eager=3, compile=False)
        self.steps = 0
        """Steps of the agent so far."""
        self._figures: dict[str, float] = {}

    def step(self) -> None:
        """Collect episodes and learn from them. Waits for the device at the end."""
        with self.stopwatch.measure("gather"):
            lived = self.gatherer.gather()
        figures = {"return": float(np.mean(self.gatherer.returns))} if self.gatherer.returns else {}
        with self.stopwatch.measure("value"):
            value_figures = self._learn_values()
        if self.steps >= self.config.value_steps:
            with self.stopwatch.measure("update"):
                figures |= self._improve()
        figures |= value_figures
        figures["std"] = self.policy.log_std.detach().exp().mean().item()
        figures["clipped_actions"] = (lived.actions.abs() > 1).float().mean().item()
        self.steps += 1
        self._figures = figures

    def metrics(self) -> dict[str, float]:
        """Of the last step."""
        return self._figures | {f"ms/{part}": value for part, value in self.stopwatch.read().items()}

    @torch.no_grad()
    def _learn_values(self) -> dict[str, float]:
        """Compute advantages of the collected episodes, and fit the value network to the returns."""
        e, config = self.gatherer.experience, self.config
        if self.steps == 0:
            self.critic.begin(e.states, e.rewards)
        values, next_values = self.critic(e.states), self.critic(e.reached)
        found = advantages(e.rewards, values, next_values, e.terminated, e.ended, config.gamma, config.lam)
        self._advantages.copy_(standardized(found).flatten())
        targets = (found + values).flatten()
        self._targets.copy_(targets / self.critic.scale)
        for _ in range(config.value_updates):
            rows = torch.randint(len(targets), (config.minibatch,), device=self.device, generator=self._learn)
            self._update_value(rows)
        # The explained variance of the returns.
        explained = 1 - found.var() / targets.var().clamp_min(1e-12)
        # Check before the policy learns from them: non-finite values would ruin it, and its checkpoint.
        self._require_finite({"the value of what was gathered": self.critic(e.states).mean().item()})
        return {"value": values.mean().item(), "explained": explained.item()}

    @torch.no_grad()
    def _improve(self) -> dict[str, float]:
        """Passes of updates. Minibatches are the same in all passes, in a new order in each."""
        size = self.config.minibatch
        shuffled = torch.randperm(len(self._old), device=self.device, generator=self._learn)
        minibatches = shuffled[: len(shuffled) // size * size].view(-1, size)
        apart = [self._remember(rows) for rows in minibatches]
        figures: list[dict[str, Tensor]] = []
        stale = "transition" in self.config.parts and self.config.filter_again
        for number in range(self.config.passes):
            if number and stale:
                self.gatherer.filter_again()
            order = torch.randperm(len(minibatches), device=self.device, generator=self._learn)
            figures += [self._update(rows) for rows in minibatches[order]]
        if stale:
            self.gatherer.filter_again()
        self.gatherer.refresh()
        means = {name: torch.stack([f[name] for f in figures]).mean().item() for name in figures[0]}
        self._require_finite(means)
        # These two metrics show whether the ratios can be trusted.
        first = {"first_ratio_error": figures[0]["ratio_error"].item()}
        return {**means, **first, "planned_apart": torch.stack(apart).mean().item()}

    def _require_finite(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            if not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value} in step {self.steps}: fine-tuning diverged")

    def _remember_old(self, rows: Tensor) -> Tensor:
        """Store the log-probabilities of rows (B,) of the experience under the current policy.

        Returns the distance between the actions planned while acting and those planned here, in units of σ.
        """
        # Plan as an update will, with a graph: without one, pruning and some kernels give other numbers.
        # There is no backward pass through this graph, so nothing is saved for it.
        with torch.enable_grad(), saved_tensors_hooks(_forget, _forget):
            mean, now = self._log_prob(rows)
        self._old[rows] = now.detach()
        before = self.gatherer.experience.flat("means")[rows]
        return ((mean.detach() - before).abs() / self.policy.log_std.exp()).mean()

    def _log_prob(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log-probabilities of rows (B,), planned again."""
        states, noise, actions = (
            self.gatherer.experience.flat(name)[rows] for name in ("states", "noise", "actions")
        )
        mean = self.policy(states, noise)
        return mean, self.policy.log_prob(actions, mean)

    def _update_policy(self, rows: Tensor) -> dict[str, Tensor]:
        config = self.config
        with torch.enable_grad():
            log_ratios = self._log_prob(rows)[1] - self._old[rows]
            ratios = log_ratios.exp()
            loss = surrogate = clipped_loss(ratios, self._advantages[rows], config.clip)
            figures = {}
            if self._replay is not None:
                model = self.policy.model
                padded = model.config.termination
                chunk = self._replay.sample(config.batch, config.length, self._learn, padded=padded)
                misfit, found = multistep_loss(model, *chunk, generator=self._learn)
                loss = loss + config.likelihood * misfit
                figures = {"model_loss": found["loss"]}
        norm = descend(loss, self._parameters, self.optimizer, config.grad_clip)
        ratios = ratios.detach()
        return {
            "policy_loss": surrogate.detach(),
            "gradient_norm": norm,
            "divergence": divergence(log_ratios.detach()),
            "clipped": clipped_fraction(ratios, config.clip),
            "ratio_error": (ratios - 1).abs().max(),
            **figures,
        }

    def _update_critic(self, rows: Tensor) -> None:
        with torch.enable_grad():
            loss = value_loss(
                self.critic.scaled(self.gatherer.experience.flat("states")[rows]), self._targets[rows]
            )
        descend(loss, self._values, self.value_optimizer, self.config.grad_clip)

    def state_dict(self) -> dict[str, Any]:
        """Everything the next steps depend on."""
        return {name: part.state_dict() for name, part in self._stateful.items()} | {
            "log_std": self.policy.log_std.detach(),
            "optimizers": [o.state_dict()["state"] for o in (self.optimizer, self.value_optimizer)],
            "generators": [g.get_state() for g in (self._play, self._learn)],
            "steps": self.steps,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, before the first step: a captured update keeps its tensors."""
        for name, part in self._stateful.items():
            part.load_state_dict(state[name])
        self.policy.log_std.copy_(state["log_std"])
        for optimizer, saved in zip((self.optimizer, self.value_optimizer), state["optimizers"], strict=True):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": saved, "param_groups": groups})
        for generator, saved in zip((self._play, self._learn), state["generators"], strict=True):
            generator.set_state(saved)
        self.steps = state["steps"]


def _forget(_: Any) -> Any:
    """Saves nothing instead of what a backward pass would need."""
    return None
