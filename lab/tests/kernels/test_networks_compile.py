"""The kernels of networks and of their gradients compile for GPUs that are not here, without spills."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="see make test-kernels")
A_FEW = 16  # bytes, for which the compiler lets one more program onto a multiprocessor


def stacks(folder: Path, *what: str) -> list[int]:
    """Bytes on the stack of every kernel, compiled in a process of its own instead of interpreted."""
    script = Path(__file__).with_name("compile_networks.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    done = subprocess.run(
        [sys.executable, script, *what], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [int(line.split()[2]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("capability", ["80", "90"])
def test_networks(capability: str, tmp_path: Path) -> None:
    found = stacks(tmp_path, capability)
    assert len(found) == 27
    for_training = found[:15] + found[19:]  # the others are exact, or without gradients of weights
    assert max(for_training) <= A_FEW, found


@pytest.mark.parametrize("capability", ["80", "90"])
def test_sums(capability: str, tmp_path: Path) -> None:
    assert stacks(tmp_path, capability, "sums") == [0] * 6
