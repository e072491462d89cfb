"""Training several seeds in parallel: an optimiser and a schedule that treat stacked members separately."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam
_FACTOR, _THRESHOLD = 0.5, 1e-4  # of a plateau


class MemberAdam(nn.Module):
    """Adam over stacked parameters (S, ...), where members differ in learning rate and gradient clipping.

    Equal to S optimisers of `torch.optim.Adam`, each after `clip_grad_norm_`. Its buffers stay in place, so
    that a captured update and a checkpoint can refer to them.
    """

    lr: Tensor  # (S,)
    count: Tensor  # ()
    first: Tensor  # (S, P), the moments of all parameters side by side
    second: Tensor

    def __init__(self, parameters: Sequence[nn.Parameter], lr: float, clip: float) -> None:
        super().__init__()
        self.parameters_of_members, self.clip = tuple(parameters), clip
        members = parameters[0].shape[0]
        self.sizes = [p[0].numel() for p in parameters]
        self.register_buffer("lr", torch.full((members,), lr))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("first", torch.zeros(members, sum(self.sizes)))
        self.register_buffer("second", torch.zeros(members, sum(self.sizes)))

    @torch.no_grad()
    def step(self, gradients: Iterable[Tensor]) -> None:
        g = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        g = g * (self.clip / (g.norm(dim=1, keepdim=True) + 1e-6)).clamp_max(1)
        beta1, beta2 = _BETAS
        self.count += 1
        self.first.lerp_(g, 1 - beta1)
        self.second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        scale = (self.second / (1 - beta2**self.count)).sqrt_().add_(_EPSILON)
        change = (self.first / scale).mul_((-self.lr / (1 - beta1**self.count)).unsqueeze(1))
        for parameter, part in zip(self.parameters_of_members, change.split(self.sizes, dim=1), strict=True):
            parameter.add_(part.view_as(parameter))


class Plateau(nn.Module):
    """Decides to halve a member's learning rate when its error has not improved `patience` times in a row.

    The rule of `torch.optim.lr_scheduler.ReduceLROnPlateau`, applied to each member separately.
    """

    best: Tensor  # (S,)
    waited: Tensor  # (S,)

    def __init__(self, members: int, patience: int) -> None:
        super().__init__()
        self.patience = patience
        self.register_buffer("best", torch.full((members,), math.inf))
        self.register_buffer("waited", torch.zeros(members, dtype=torch.long))

    def forward(self, error: Tensor) -> Tensor:
        """The factors (S,) to multiply learning rates with, after measuring these errors (S,)."""
        better = error < self.best * (1 - _THRESHOLD)
        self.best.copy_(torch.where(better, error, self.best))
        self.waited.add_(1).mul_(~better)
        halve = self.waited > self.patience
        self.waited.mul_(~halve)
        return torch.where(halve, _FACTOR, 1.0)
