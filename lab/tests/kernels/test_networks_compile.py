"""The kernels of critics, actors and gradient steps compile for GPUs that are not here, without spills."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="see make test-kernels")
A_FEW = 16  # bytes, for which the compiler lets one more program onto a multiprocessor


@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_variant_compiles(capability: str, tmp_path: Path) -> None:
    """In a process of its own, where kernels are compiled instead of interpreted."""
    script = Path(__file__).with_name("compile_networks.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, script, capability], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 27
    for_training = lines[:15] + lines[19:]  # the others are exact, or without gradients of weights
    assert all(int(stack) <= A_FEW for _, _, stack in for_training), done.stdout
