"""Ensembles of networks that run in parallel: every parameter has a leading ensemble dimension.

A layer of M members is one batched matrix product, so that M small networks cost one launch. Weights are
stored as (M, in, out), biases as (M, out): y = x @ weight + bias on x of shape (M, N, in).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dcem_lab.suite.rssm.fast import mlp

aten = torch.ops.aten


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "elu": F.elu, "gelu": F.gelu}
BACKWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, x, out: aten.threshold_backward.grad_input(grad, x, 0, grad_input=out),
    "elu": lambda grad, x, out: aten.elu_backward.grad_input(grad, 1, 1, 1, False, x, grad_input=out),
    "gelu": lambda grad, x, out: aten.gelu_backward.grad_input(grad, x, grad_input=out),
}
"""Of an activation f: grad · f'(x), written to ``out``."""


def _uniform(shape: Sequence[int], bound: float, generator: torch.Generator | None) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound, generator=generator))


def _normed(x: Tensor) -> Tensor:
    """silu(LayerNorm(x)), without gains."""
    return F.silu(F.layer_norm(x, x.shape[-1:]))


def network(x: Tensor, layers: list[tuple[Tensor, Tensor]], activate: Callable[[Tensor], Tensor]) -> Tensor:
    """Fully connected layers, given as weights and biases, activated in between."""
    for i, (weight, bias) in enumerate(layers):
        x = torch.baddbmm(bias.unsqueeze(1), activate(x) if i else x, weight)
    return x


def _normed_network(x: Tensor, *parameters: Tensor) -> Tensor:
    """`network` with silu(LayerNorm(·)), of weight, bias, weight, bias …"""
    return network(x, list(zip(parameters[::2], parameters[1::2], strict=True)), _normed)


class EnsembleMLP(nn.Module):
    """M fully connected networks: sizes[0] → sizes[1] → … → sizes[-1], activated between the layers.

    Without an ``activation``, silu(LayerNorm(·)) is between them: critics and actors are like that. On
    CUDA and on the CPU there are fused kernels for these (`mlp.kernels_for`), if there are two hidden layers.
    ``weights[i]``: (M, sizes[i], sizes[i+1]); ``biases[i]``: (M, sizes[i+1]), both uniform in ±1/√fan_in.

    >>> net = EnsembleMLP([3, 16, 2], "relu", members=4)
    >>> net(torch.zeros(4, 10, 3)).shape
    torch.Size([4, 10, 2])
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str | None,
        members: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if activation is not None and activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        self.activation = activation
        self.activate = _normed if activation is None else ACTIVATIONS[activation]
        layers = list(pairwise(sizes))
        self.weights = nn.ParameterList(_uniform((members, i, o), i**-0.5, generator) for i, o in layers)
        self.biases = nn.ParameterList(_uniform((members, o), i**-0.5, generator) for i, o in layers)

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of every layer."""
        return list(zip(self.weights, self.biases, strict=True))

    @property
    def in_a_row(self) -> list[Tensor]:
        """Weight, bias, weight, bias …"""
        return [parameter for layer in self.layers for parameter in layer]

    def forward(self, x: Tensor, frozen: bool = False) -> Tensor:
        """(M, N, sizes[0]) → (M, N, sizes[-1]). With ``frozen``, the weights get no gradient."""
        parameters = [p.detach() for p in self.in_a_row] if frozen else self.in_a_row
        kernels = mlp.kernels_for(x, parameters) if self.activation is None else None
        if kernels is not None:
            return mlp.normed_network(kernels, x, parameters, _normed_network)
        return network(x, list(zip(parameters[::2], parameters[1::2], strict=True)), self.activate)


class EnsembleGRU(nn.Module):
    """M gated recurrent units with reset, update and new gate, as `torch.nn.GRUCell` has them:

        r = σ(W_r [h, a] + b_r)        z = σ(W_z [h, a] + b_z)
        n = tanh(W_i a + b_i + r (W_h h + b_h))        h' = (1 − z) n + z h

    The four pre-activations lie in the order n_h, r, z, n_i (the hidden state's part of n first, the input's
    last), so that h feeds the first three and a the last three: ``hidden_weight`` (M, H, 3H) for n_h, r, z;
    ``input_weight`` (M, inputs, 3H) for r, z, n_i; ``bias`` (M, 4H) for all.

    >>> gru = EnsembleGRU(inputs=5, hidden=8, members=2)
    >>> gru(torch.zeros(2, 10, 5), torch.zeros(2, 10, 8)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self, inputs: int, hidden: int, members: int = 1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        bound = hidden**-0.5
        self.hidden_weight = _uniform((members, hidden, 3 * hidden), bound, generator)
        self.input_weight = _uniform((members, inputs, 3 * hidden), bound, generator)
        self.bias = _uniform((members, 4 * hidden), bound, generator)

    def forward(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """(M, N, inputs), (M, N, H) → the next hidden state (M, N, H)."""
        H = hidden.shape[-1]
        bias_h, bias_i = self.bias.unsqueeze(1).split([3 * H, H], dim=-1)
        new_h, reset_h, update_h = torch.baddbmm(bias_h, hidden, self.hidden_weight).chunk(3, dim=-1)
        reset_i, update_i, new_i = torch.bmm(inputs, self.input_weight).chunk(3, dim=-1)
        reset = torch.sigmoid(reset_i + reset_h)
        update = torch.sigmoid(update_i + update_h)
        new = torch.tanh(new_i + bias_i + reset * new_h)
        return torch.lerp(new, hidden, update)


class MemorylessGRU(nn.Module):
    """M gated recurrent units without recurrence: h' = tanh(W_i a + b_i + r b_h), whatever h was.

    Its interface is that of an `EnsembleGRU` that ignores h and whose update gate is closed, so all code that
    reads such weights works unchanged.

    >>> gru = MemorylessGRU(inputs=5, hidden=8, members=2)
    >>> a = torch.zeros(2, 10, 5)
    >>> torch.equal(gru(a, torch.zeros(2, 10, 8)), gru(a, torch.ones(2, 10, 8)))
    True
    """

    SHUT = -1e4  # before the sigmoid, which is then zero in every precision

    def __init__(
        self, inputs: int, hidden: int, members: int = 1, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        bound = hidden**-0.5
        self.reset_weight = _uniform((members, inputs, hidden), bound, generator)
        self.new_weight = _uniform((members, inputs, hidden), bound, generator)
        self.biases = _uniform((members, 3 * hidden), bound, generator)  # of n_h, r and n_i

    @property
    def hidden_weight(self) -> Tensor:
        members, _, H = self.new_weight.shape
        return self.new_weight.new_zeros(members, H, 3 * H)

    @property
    def input_weight(self) -> Tensor:
        return torch.cat([self.reset_weight, torch.zeros_like(self.new_weight), self.new_weight], dim=-1)

    @property
    def bias(self) -> Tensor:
        new_h, reset, new_i = self.biases.chunk(3, dim=-1)
        return torch.cat([new_h, reset, torch.full_like(reset, self.SHUT), new_i], dim=-1)

    forward = EnsembleGRU.forward
