"""The fused kernels compile for GPUs that are not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("capability", ["80", "90"])
def test_every_variant_compiles(capability, tmp_path):
    """In a process of its own, where kernels are compiled instead of interpreted."""
    script = Path(__file__).with_name("compile_all.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, script, capability], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(sizes) == 48 and min(sizes) > 0
