"""The kernels compile for GPUs that are not here."""

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
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 48 + 16 and all(int(size) > 0 for _, _, size, _ in lines)
    registers = [line for line in lines if line[:2] == ["dcem.topk.lml_triton", "*fp32"]]
    assert len(registers) == 8 and all(spilled == "0" for *_, spilled in registers)
