"""Networks like critics and actors, what their fused kernels are compared with, and tests of these."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from dcem_lab.suite.agents import ValueConfig, ValueLearner
from dcem_lab.suite.replay import ReplayBuffer
from dcem_lab.suite.rssm import RSSM, RSSMConfig
from dcem_lab.suite.rssm.fast import mlp
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
    return torch.stack([(a - b).norm() / b.norm() for a, b in pairs]).max().item()  # or NaN


def learner(
    values: str,
    device: str = "cpu",
    width: int = 64,
    batch: int = 50,
    actions: int = 1,
    terminates: bool = False,
    **changes: Any,
) -> ValueLearner:
    """Critics and an actor that learn from random experience, of episodes of ten steps."""
    generator = Generator(device).manual_seed(0)
    replay = ReplayBuffer(16, 12, 2, actions, device, shortest_episode=2 if terminates else 4)
    for t in range(10):
        x = torch.rand(16, 2, device=device, generator=generator) * 2 - 1
        ended = torch.full((16,), t == 9, device=device)
        replay.add(x, x[:, :1].expand(-1, actions), x[:, 1], x, ended, ended & terminates)
    model = RSSM(2, actions, RSSMConfig(hidden=8, width=8)).to(device)
    config = ValueConfig(
        critics=3, width=width, batch=batch, gamma=0.98, values=values, updates_per_step=3.0, **changes
    )
    value = config.value(model, 0)
    if values == "two-hot":  # which starts at zero, where the critics pass nothing to the actor
        torch.nn.init.normal_(value.critics.weights[-1], std=0.1, generator=Generator().manual_seed(0))
    return ValueLearner(value.to(device), model, replay, config, generator)


def at_bounds(values: str, device: str = "cpu", **changes: Any) -> ValueLearner:
    """A learner where some values, if scalar, are at a bound of 0.5, and some actions at theirs."""
    fit = learner(values, device, actions=3, smoothing=2.0, smoothing_clip=1.5, **changes)
    with torch.no_grad():
        fit.average.critics.biases[-1].add_(0.4)
    return fit


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The kernels that networks are taken through from now on; their tensors would keep a graph alive."""
    seen: list[object] = []
    apply = mlp.normed_network
    monkeypatch.setattr(mlp, "normed_network", lambda *given: seen.append(given[0]) or apply(*given))
    return seen


class EqualsPlainTorch:
    """Tests of kernels on the CPU. A module's fixture `calls` is what was `recorded`."""

    near = 2e-6
    no_kernel: Sequence[Sizes]
    """Sizes that there is none for."""
    whole_update: Sequence[str] = ()
    """Kinds of values that are learned without `EnsembleMLP.forward`."""

    def switch_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        raise NotImplementedError

    def test_gradients_of_weights_alone_and_of_some(self, calls: list[object]) -> None:
        net, x = make(SIZES[0])
        assert far(results(net, x), results(*exact(net, x))) < self.near
        net.requires_grad_(False).weights[1].requires_grad_()
        assert far(results(net, x), results(*exact(net, x))) < self.near
        assert len(calls) == 2

    def test_inputs_that_members_share_and_that_are_not_in_a_row(self, calls: list[object]) -> None:
        net, x = make(SIZES[0])
        shared = x[0].expand_as(x).requires_grad_()
        apart = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
        padded = torch.cat([x, x], dim=-1)[..., : x.shape[-1]].requires_grad_()
        for given in (shared, apart, padded):
            assert far(results(net, given), results(*exact(net, given))) < self.near
        with torch.no_grad():
            assert far([net(x)], [exact(net, x)[0](x.double())]) < self.near
        assert len(calls) == 4

    def test_second_derivatives_and_many_gradients_at_once(self, calls: list[object]) -> None:
        """Also of the gradient that arrives from above, and where x depends on the weights."""
        net, x = make((2, 9, 5, 64, 3))
        found = []
        for network, given in ((net, x.requires_grad_()), exact(net, x.requires_grad_())):
            inputs = given * (1 + network.biases[0].mean())
            (slope,) = torch.autograd.grad(network(inputs).square().sum(), given, create_graph=True)
            twice = torch.autograd.grad(slope.square().sum(), [given, *network.in_a_row])
            out = network(given).sum(dim=(0, 1))
            rows = torch.eye(3, dtype=out.dtype)
            many = torch.autograd.grad(out, [given, *network.in_a_row], rows, is_grads_batched=True)
            found.append([*twice, *many])
        assert far(*found) < 10 * self.near
        assert len(calls) == 2

    def test_what_has_no_kernel_is_plain(self, calls: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
        for sizes in self.no_kernel:
            net, x = make(sizes)
            net(x)
        net, x = make((2, 3, 4, 64, 1))
        net.double()(x.double())
        EnsembleMLP([4, 64, 1], None, 2)(x)
        EnsembleMLP([4, 64, 64, 1], "relu", 2)(x)
        net.float()
        with torch.autocast("cpu", torch.bfloat16):
            net(x)
        slope = torch.func.grad(lambda x: net(x).sum())(x)
        assert not calls
        (expected,) = torch.autograd.grad(net(x.requires_grad_()).sum(), x)
        assert len(calls) == 1
        torch.testing.assert_close(slope, expected)
        self.switch_off(monkeypatch)
        torch.testing.assert_close(net(x).sum(), net.double()(x.double()).sum().float())
        assert len(calls) == 1

    @pytest.mark.parametrize("values", ["scalar", "two-hot"])
    def test_an_update_of_critics_and_actor(
        self, values: str, calls: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = []
        for fused in (True, False):
            if not fused:
                self.switch_off(monkeypatch)
            fit = learner(values)
            fit.update()
            metrics = torch.tensor(list(fit.metrics().values()))
            found.append([*(p.grad for p in fit.value.parameters()), metrics])
        assert far(*found) < 20 * self.near
        # Actor and critics, those of the averages, and the critics for the actor; or one function for all.
        assert len(calls) == (0 if values in self.whole_update else 5)
