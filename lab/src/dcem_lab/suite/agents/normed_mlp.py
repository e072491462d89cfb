"""Parallel fully connected networks with normalised layers, for critics and actors."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F


class NormedMLP(nn.Module):
    """M networks sizes[0] → … → sizes[-1], with silu(LayerNorm(·)), without gains, between the layers.

    ``weights[i]``: (M, sizes[i], sizes[i+1]); ``biases[i]``: (M, sizes[i+1]), both uniform in ±1/√fan_in.

    >>> net = NormedMLP([3, 16, 2], members=4)
    >>> net(torch.zeros(4, 10, 3)).shape
    torch.Size([4, 10, 2])
    """

    def __init__(self, sizes: Sequence[int], members: int = 1, generator: Generator | None = None) -> None:
        super().__init__()
        self.sizes = tuple(sizes)

        def drawn(*shape: int, fan_in: int) -> nn.Parameter:
            bound = fan_in**-0.5
            return nn.Parameter(torch.empty(members, *shape).uniform_(-bound, bound, generator=generator))

        layers = list(pairwise(sizes))
        self.weights = nn.ParameterList(drawn(i, o, fan_in=i) for i, o in layers)
        self.biases = nn.ParameterList(drawn(o, fan_in=i) for i, o in layers)

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """(M, N, sizes[0]) → (M, N, sizes[-1]). With ``frozen``, the weights get no gradient."""
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if frozen:
                weight, bias = weight.detach(), bias.detach()
            if i:
                x = F.silu(F.layer_norm(x, x.shape[-1:]))
            x = torch.baddbmm(bias.unsqueeze(1), x, weight)
        return x
