"""Layers under DDP and FSDP2, two processes that see half of a batch each: the gradients of one process."""

import os
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn

import dcem

WIDTH = 16


class Energy(nn.Module):
    """A bowl whose bottom a network chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - self.net(x)).square().sum(-1)


class Model(nn.Module):
    """A system to control, learned."""

    action_dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        following = state + self.net(torch.cat([state, action], -1))
        return following, following.square().sum(-1)


class Controller(nn.Module):
    """The first action, so that the wrapper calls `forward` with a tensor and gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.mpc = dcem.MPC(Model(), horizon=3, solver=dcem.DCEM(n_iters=3), seed=0)

    def forward(self, state: Tensor) -> Tensor:
        return self.mpc(state).actions.flatten(-2)


def make(kind: str) -> nn.Module:
    """In evaluation mode the noise is the same for every row: a batch can be divided."""
    torch.manual_seed(0)
    if kind == "argmin":
        return dcem.Argmin(Energy(), dcem.DCEM(n_iters=3, tau=dcem.Positive(0.5)), n=2, seed=0).eval()
    return Controller().eval()


def batch() -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def work(rank: int, port: int, kind: str, wrapper: str, folder: str) -> None:
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    layer = make(kind)
    if wrapper == "ddp":
        layer = nn.parallel.DistributedDataParallel(layer)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    layer(batch()[4 * rank : 4 * rank + 4]).square().mean().backward()
    found = {
        name.removeprefix("module."): p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        for name, p in layer.named_parameters()
    }
    if rank == 0:
        torch.save(found, Path(folder) / "gradients.pt")
    distributed.barrier()
    distributed.destroy_process_group()
    # FSDP2 holds on to gloo's threads: an interpreter that shuts down beside them aborts now and then.
    os._exit(0)


@pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        ("argmin", "ddp"),
        pytest.param("argmin", "fsdp2", marks=pytest.mark.slow),
        pytest.param("mpc", "ddp", marks=pytest.mark.slow),
        ("mpc", "fsdp2"),
    ],
)
def test_two_processes_have_the_gradients_of_one(kind, wrapper, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, kind, wrapper, str(tmp_path)), nprocs=2)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    layer = make(kind)
    layer(batch()).square().mean().backward()
    expected = {name: p.grad for name, p in layer.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
