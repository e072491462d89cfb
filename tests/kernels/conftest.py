"""Triton interprets the kernels here, in Python and on CPU tensors."""

import os

import pytest

from dcem.distributions import fused


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs TRITON_INTERPRET=1, see make test-kernels")
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
