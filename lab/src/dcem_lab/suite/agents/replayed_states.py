"""Model states to plan from, filtered from replayed experience."""

from typing import Any

import torch
from torch import Generator, Tensor

from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM


@torch.no_grad()
def replayed_states(model: RSSM, replay: ReplayBuffer, config: Any, generator: Generator) -> Tensor:
    """Model states (B, S): the last of chunks, or any of those with which an episode begins.

    Args:
        model: observes the chunks.
        replay: where they come from.
        config: with states (B), context (steps of a chunk), start_share (of the states, from the first
            `context` steps of episodes) and recent (take the others from so many newest steps; 0 for all).
        generator: of the choice, on the model's device.
    """
    n_starts = round(config.start_share * config.states)
    kinds: tuple[tuple[int, dict[str, Any]], ...] = (
        (config.states - n_starts, {"newest": config.recent or None}),
        (n_starts, {"from_start": True}),
    )
    padded = model.config.termination
    chunks = [
        replay.sample(count, config.context, generator, padded=padded, **kind)
        for count, kind in kinds
        if count
    ]
    observations, actions, _, terminated, valid = map(torch.cat, zip(*chunks, strict=True))
    state = model.initial(observations[:, 0])
    followed = [state]
    for t in range(config.context):
        state = model.observe(state, actions[:, t], observations[:, t + 1])
        followed.append(state)
    step = torch.full((config.states,), config.context, device=state.device)
    drawn = torch.rand(n_starts, device=state.device, generator=generator)
    step[config.states - n_starts :] = (drawn * len(followed)).long().clamp(max=config.context)
    if padded:  # no planning at the end of an episode, or after it
        step = torch.minimum(step, valid.sum(dim=1) - terminated.any(dim=1).long())
    return torch.stack(followed)[step, torch.arange(config.states, device=state.device)]
