"""Soft top-k operators of others on a GPU, beside `dcem.lml`, where as many samples count in effect.

The operators are those of the library's benchmark on the CPU.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from clock import as_graph, draw, median_ms, without_grad
from pages import Row, Table

import dcem

_BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
_SHAPES = ((1, 100), (2500, 100), (4096, 1000))
_RELAXED = 100  # scores in a row at most: a relaxed permutation needs the square of them
NOT_CAPTURED = ", not captured"

sys.path.append(str(_BENCHMARKS))
from operators import OPERATORS, Operator, matched  # noqa: E402


def operators() -> Table:
    rows = [row for batch, n in _SHAPES for row in _operators(batch, n)]
    note = (
        "Standard normal scores, each operator at the temperature where 1.5 k samples count in effect. SOFT "
        "(200 iterations), LapSum and the Euclidean projection are from their papers' formulas, in torch. "
        "Bytes as for the soft top-k above. difftopk is not captured: compare it with `dcem` there."
    )
    return Table("topk", "Soft top-k operators", note, rows)


def _operators(batch: int, n: int) -> list[Row]:
    k, x, g = n // 10, draw(batch, n).requires_grad_(), draw(batch, n)
    size, rows = 4.0 * batch * n, []
    ours: dict[str, Operator] = {"dcem.lml": dcem.lml, **OPERATORS}
    theirs = _difftopk(n)
    for name, choose in (ours | theirs).items():
        temperature = matched(choose, x.detach(), k, 1.5 * k)

        def weights(choose: Operator = choose, temperature: float = temperature) -> torch.Tensor:
            return choose(x, k, temperature)

        def both(weights=weights) -> tuple[torch.Tensor, ...]:
            return torch.autograd.grad(weights(), x, g)

        label, timed = (name, as_graph) if name in ours else (name + NOT_CAPTURED, lambda f: f)
        case = f"{batch}×{n}, k={k}, "
        rows.append(Row(case + "forward", label, median_ms(timed(without_grad(weights))), 2 * size))
        rows.append(Row(case + "forward+backward", label, median_ms(timed(both)), 5 * size))
    return sorted(rows, key=lambda row: row.case)


def _difftopk(n: int) -> dict[str, Operator]:
    """Its operators, as the benchmark on the CPU calls them; none for long rows or without the package."""
    if n > _RELAXED or importlib.util.find_spec("difftopk") is None:
        return {}
    spec = importlib.util.spec_from_file_location("peer", _BENCHMARKS / "peers" / "difftopk.py")
    assert spec is not None and spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    return {"difftopk, bitonic network": peer.network, "difftopk, SoftSort": peer.softsort}
