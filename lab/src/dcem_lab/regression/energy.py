"""The energy network of the paper's regression, for one model or several that train side by side."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class EnergyNetwork(nn.Module):
    """E(x, y): a fully connected network (x, y) → hidden → … → 1 with softplus between the layers.

    Softplus is smooth, so that the model can be trained through gradient descent on the energy.

    Args:
        x_dim: m, the dimension of x.
        y_dim: n, the dimension of y.
        hidden: sizes of the hidden layers.
        members: M independent networks that share nothing but their launches. With M > 1 the first dimension
            of x and y is the member.

    The first weights are uniform in ±1/√fan_in.
    The first layer is split: what x contributes is computed once, not for every candidate y.
    ``weights[i]``: (M, in, out) and ``biases[i]``: (M, out); ``weights[0]`` and ``biases[0]`` act on x,
    ``weights[1]`` on y.

    >>> energy = EnergyNetwork(x_dim=1, y_dim=2)
    >>> energy(torch.zeros(5, 1, 1), torch.zeros(5, 100, 2)).shape
    torch.Size([5, 100])
    """

    def __init__(
        self, x_dim: int, y_dim: int, hidden: Sequence[int] = (128, 128, 128), members: int = 1
    ) -> None:
        super().__init__()
        self.members = members
        joint = x_dim + y_dim
        sizes = [*hidden, 1]

        def uniform(fan_in: int, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(members, *shape).uniform_(-1, 1) / fan_in**0.5)

        layers = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(
            [uniform(joint, x_dim, sizes[0]), uniform(joint, y_dim, sizes[0])]
            + [uniform(i, i, o) for i, o in layers]
        )
        self.biases = nn.ParameterList([uniform(joint, sizes[0])] + [uniform(i, o) for i, o in layers])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x (*B, 1, m) or (*B, N, m), y (*B, N, n) → energies (*B, N); for M > 1 members, B begins with M."""
        members = self.members
        weight_x, weight_y, *weights = self.weights
        bias_x, *biases = self.biases
        from_x = torch.baddbmm(bias_x.unsqueeze(1), x.reshape(members, -1, x.shape[-1]), weight_x)
        from_y = torch.bmm(y.reshape(members, -1, y.shape[-1]), weight_y)
        rows = from_x.reshape(members, -1, x.shape[-2], from_x.shape[-1])
        h = (rows + from_y.reshape(members, -1, y.shape[-2], from_y.shape[-1])).flatten(1, 2)
        for weight, bias in zip(weights, biases, strict=True):
            h = torch.baddbmm(bias.unsqueeze(1), F.softplus(h), weight)
        return h.reshape(y.shape[:-1])
