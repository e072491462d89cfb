"""Networks like critics and actors, and what their fused kernels are compared with."""

import copy
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from dcem_lab.suite.agents import ValueConfig, ValueLearner
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.nets import EnsembleMLP

Sizes = tuple[int, int, int, int, int]
SIZES: list[Sizes] = [  # members, rows, inputs, width and outputs: none a multiple of the kernels' blocks
    (5, 50, 23, 64, 1),
    (1, 37, 80, 128, 6),
    (2, 33, 130, 64, 101),
    (2, 17, 1, 64, 128),
    (3, 20, 67, 256, 17),
    (1, 1, 5, 64, 2),
    (2, 520, 3, 64, 1),
]


def make(sizes: Sizes, device: str = "cpu") -> tuple[EnsembleMLP, Tensor]:
    """A network with biases that matter, and inputs."""
    M, N, X, W, Y = sizes
    net = EnsembleMLP([X, W, W, Y], None, M, Generator().manual_seed(0))
    x = torch.randn(M, N, X, generator=Generator().manual_seed(1))
    return net.to(device), x.to(device)


def results(net: EnsembleMLP, x: Tensor, frozen: bool = False) -> list[Tensor]:
    """The outputs, and the gradients of what has one for a random gradient of these."""
    wanted = [*([x] if x.requires_grad else []), *([] if frozen else net.in_a_row)]
    wanted = [t for t in wanted if t.requires_grad]
    out = net(x, frozen)
    above = torch.randn(out.shape, generator=Generator().manual_seed(2)).to(out)
    return [out.detach(), *torch.autograd.grad(out, wanted, above)]


def exact(net: EnsembleMLP, x: Tensor) -> tuple[EnsembleMLP, Tensor]:
    """The same in float64 on the CPU, which has no kernels."""
    net = copy.deepcopy(net).double().cpu()
    return net, x.detach().double().cpu().requires_grad_(x.requires_grad)


def far(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest distance between two of the tensors, relative to the expected one's norm."""
    pairs = [
        (a.detach().double().cpu(), b.detach().double().cpu()) for a, b in zip(found, expected, strict=True)
    ]
    assert all(a.shape == b.shape for a, b in pairs)
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


def learner(values: str, device: str = "cpu", width: int = 64, batch: int = 50) -> ValueLearner:
    """Critics and an actor that learn from random experience."""
    generator = Generator(device).manual_seed(0)
    replay = ReplayBuffer(16, 12, 2, 1, device, shortest_episode=4)
    for t in range(10):
        x = torch.rand(16, 2, device=device, generator=generator) * 2 - 1
        replay.add(x, x[:, :1], x[:, 1], x, torch.full((16,), t == 9, device=device))
    model = RSSM(2, 1, RSSMConfig(hidden=8, width=8)).to(device)
    config = ValueConfig(critics=3, width=width, batch=batch, gamma=0.98, values=values, updates_per_step=3.0)
    value = config.value(model, 0)
    if values == "two-hot":  # which starts at zero, where the critics pass nothing to the actor
        torch.nn.init.normal_(value.critics.weights[-1], std=0.1, generator=Generator().manual_seed(0))
    return ValueLearner(value.to(device), model, replay, config, generator)
