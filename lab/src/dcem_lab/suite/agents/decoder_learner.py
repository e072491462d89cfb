"""Learning the decoder of a latent action space on replayed states (Algorithms 2 and 3 of the paper)."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from dcem import Decoder, embedding_loss
from dcem.control.decoder import ACTIVATIONS
from dcem_lab.runs import require
from dcem_lab.runs.settings import Settings, setting
from dcem_lab.suite.agents.planner import PlannerConfig
from dcem_lab.suite.agents.residual_decoder import ResidualDecoder
from dcem_lab.suite.agents.soft_plans import SoftPlans
from dcem_lab.suite.agents.value import Value
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM
from dcem_lab.training.fit import Fit
from dcem_lab.training.modes import MODES, by_name


@dataclass(frozen=True)
class DecoderConfig(Settings):
    """A decoder and how it learns.

    Attributes:
        latent_dim: d, dimension of z.
        hidden: widths of the hidden layers.
        activation: activation of the hidden layers: elu, relu or gelu.
        conditioned: condition it on the model's state; the paper's is a function of z alone.
        residual: decode corrections to a policy's plan (`ResidualDecoder`); needs a value.
        updates_per_step: updates per step of all environments; can be a fraction.
        states: replayed states per update.
        context: steps that the model observes before each state, to warm up its recurrent state.
        start_share: fraction of the states from the first `context` steps of episodes, which are otherwise
            rare.
        recent: if positive, take states only from this many newest steps of every environment (the paper
            found this to bias the decoder).
        lr: learning rate of Adam.
        clip: maximum norm of the gradients.
        average: decay of the moving average of the weights used for planning; 0 for no averaging.
        backward: how plans are differentiated: unroll, checkpoint, truncate, prune or detach.
        kept: fraction of the iterations that truncate differentiates, or of the samples for prune.
    """

    latent_dim: int = setting(16, least=1)
    hidden: tuple[int, ...] = setting((256, 256, 256), least=1)
    activation: str = setting("gelu", among=tuple(ACTIVATIONS))
    conditioned: bool = False
    residual: bool = False
    updates_per_step: float = setting(1.0, least=0)
    states: int = setting(32, least=1)
    context: int = setting(20, least=1)
    start_share: float = setting(0.0, least=0, most=1)
    recent: int = setting(0, least=0)
    lr: float = setting(5e-4, above=0)
    clip: float = setting(1.0, above=0)
    average: float = setting(0.99, least=0, below=1)
    backward: str = setting("unroll", among=MODES)
    kept: float = setting(0.2, above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The first `context` steps of an episode contain no chunk: use the end of the previous one.
        enough = not self.recent or self.recent > self.context
        require(enough, "recent", self.recent, f"0 or above context={self.context}")

    def decoder(self, model: RSSM, horizon: int, seed: int) -> Decoder:
        """A new one, for plans of that length on that model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            kind = ResidualDecoder if self.residual else Decoder
            return kind(
                self.latent_dim,
                horizon,
                model.action_dim,
                hidden=self.hidden,
                activation=self.activation,
                state_dim=model.state_dim if self.conditioned else 0,
            )

    @torch.no_grad()
    def replayed(self, model: RSSM, replay: ReplayBuffer, generator: Generator) -> Tensor:
        """Replayed model states (B, S): the last of chunks, or any of those that begin an episode."""
        n_starts = round(self.start_share * self.states)
        kinds = (self.states - n_starts, False, self.recent or None), (n_starts, True, None)
        padded = model.config.termination
        chunks = [
            replay.sample(count, self.context, generator, from_start, newest, padded)
            for count, from_start, newest in kinds
            if count
        ]
        observations, actions, _, terminated, valid = map(torch.cat, zip(*chunks, strict=True))
        followed = [model.initial(observations[:, 0])]
        for t in range(self.context):
            followed.append(model.observe(followed[-1], actions[:, t], observations[:, t + 1]))
        device = actions.device
        step = torch.full((self.states,), self.context, device=device)
        drawn = torch.rand(n_starts, device=device, generator=generator)
        step[self.states - n_starts :] = (drawn * len(followed)).long().clamp(max=self.context)
        if padded:  # no planning at the end of an episode, or after it
            step = torch.minimum(step, valid.sum(dim=1) - terminated.any(dim=1).long())
        return torch.stack(followed)[step, torch.arange(self.states, device=device)]


class DecoderLearner(Fit):
    """Minimises the predicted cost of plans, C_θ(ẑ), over the decoder's weights θ only.

    Plans start from the model's states on replayed experience, not from the states just planned for:
    consecutive states are similar, and the paper found that a decoder trained on them is biased.

    Args:
        decoder, config: what learns, and how.
        model, planner: what it is planned with.
        replay: where states come from.
        generator: of states and samples, on the model's device.
        value: what a plan's end is worth, and the policy that a residual decoder corrects.

    Weights of model and value may change, but not from here.
    """

    average: Decoder
    tag = "decoder"

    def __init__(
        self,
        decoder: Decoder,
        model: RSSM,
        replay: ReplayBuffer,
        config: DecoderConfig,
        planner: PlannerConfig,
        generator: Generator,
        value: Value | None = None,
    ) -> None:
        self.decoder, self.model, self.replay, self.config = decoder, model, replay, config
        self.value, self.planner = value, planner
        self.backward = by_name(config.backward, config.kept, planner.iterations)
        self._plans = SoftPlans(model, decoder, planner, self.backward, value, parts=("decoder",))
        super().__init__(decoder, config, generator)

    def loss(self) -> tuple[Tensor, dict[str, Tensor]]:
        situation = self._plans.situation(self.states())
        cost = embedding_loss(self._plans.mpc, situation, self.generator)
        return cost, {"cost": cost.detach()}

    def states(self) -> Tensor:
        """Replayed model states (B, S)."""
        return self.config.replayed(self.model, self.replay, self.generator)
