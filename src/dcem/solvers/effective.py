"""The temperature at which a soft top-k has a given effective sample size."""

import math

import torch
from torch import Tensor

from dcem._checks import can_look
from dcem.topk.lml import soft_topk

_COLDEST, _WARMEST = 1e-4, 1e4  # in standard deviations of the values
_STEPS = 30  # of Newton's method, with bisection as the fallback; a third of them usually suffices


def temperature_for(values: Tensor, k: float | Tensor, ess: float | Tensor) -> Tensor:
    """τ (*B, 1) with (Σw)² / Σw² = ess for w = lml(-v, k, τ) and scaled values v (*B, N).

    The effective sample size grows with τ, from k to N. Newton's method on its logarithm as a function of
    log τ finds the root. Gradients pass through two more steps, with a constant slope: they leave the root
    where it is, and each makes one more derivative exact, as the implicit function theorem has it. If no
    temperature fits (for example, all values are equal), τ is the closest one tried, without a gradient.
    """
    v = values.detach()
    k_, ess_ = (x.detach() if isinstance(x, Tensor) else x for x in (k, ess))
    low = v.new_full((*v.shape[:-1], 1), math.log(_COLDEST))
    high = torch.full_like(low, math.log(_WARMEST))
    log_tau = torch.zeros_like(low)
    with torch.no_grad():
        for _ in range(_STEPS):
            error, slope = _excess(v, k_, ess_, log_tau)
            low, high = torch.where(error < 0, log_tau, low), torch.where(error > 0, log_tau, high)
            done = error.abs() < 1e-6  # a converged row stays fixed while others in the batch continue
            if can_look(done) and bool(done.all()):
                break
            newton = log_tau - error / slope
            inside = (newton > low) & (newton < high)
            log_tau = torch.where(done, log_tau, torch.where(inside, newton, (low + high) / 2))
        error, slope = _excess(v, k_, ess_, log_tau)
    found = (error.abs() < 1e-3) & (slope > 0)
    slope = torch.where(found, slope, 1.0)
    for _ in range(2):
        moved = _excess(values, k, ess, log_tau)[0] - error
        log_tau = torch.where(found, log_tau - moved / slope, log_tau)
    return log_tau.exp()


def _excess(values: Tensor, k: float | Tensor, ess: float | Tensor, log_tau: Tensor) -> tuple[Tensor, Tensor]:
    """log ESS − log ess, and its derivative in log τ: 2 Σ y s (a − ā) / Σ y², a = -v / τ, s = y (1 − y)."""
    tau = log_tau.exp()
    y = soft_topk(-values, k, tau, finite_only=True)
    square = y.square().sum(-1, keepdim=True)
    error = 2 * y.sum(-1, keepdim=True).log() - square.log() - torch.as_tensor(ess).to(y).log()
    y, v, tau = y.detach(), values.detach(), tau.detach()
    a, s = torch.where(v.isfinite(), -v / tau, 0.0), y * (1 - y)
    centre = (s * a).sum(-1, keepdim=True) / s.sum(-1, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    return error, 2 * (y * s * (a - centre)).sum(-1, keepdim=True) / square.detach()
