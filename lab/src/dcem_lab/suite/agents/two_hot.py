"""Values as distributions over bins: a regression that is learned as a classification.

A number y lies between two neighbouring bins. Its two-hot weights are those of linear interpolation, so that
the weighted mean of the bins is y. With ``symlog`` the bins are evenly spaced in sign(y) ln(1 + |y|): fine
around zero and coarse far away, so that numbers of any size fit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """The inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


@dataclass(frozen=True)
class TwoHot:
    """Bins from −span to span, optionally on the scale of `symlog`.

    >>> bins = TwoHot(5, 2.0, symlog=False)
    >>> bins.weights(torch.tensor([0.25, 9.0]))
    tensor([[0.0000, 0.0000, 0.7500, 0.2500, 0.0000],
            [0.0000, 0.0000, 0.0000, 0.0000, 1.0000]])
    """

    bins: int = 101
    span: float = 10.0
    symlog: bool = True

    def weights(self, y: Tensor) -> Tensor:
        """Numbers (...) → weights (..., bins) that sum to one; numbers outside go to the last bin."""
        at = (symlog(y) if self.symlog else y).clamp(-self.span, self.span)
        at = (at + self.span) * ((self.bins - 1) / (2 * self.span))
        index = torch.arange(self.bins, device=y.device, dtype=y.dtype)
        return (1 - (at.unsqueeze(-1) - index).abs()).clamp_min(0)

    def mean(self, logits: Tensor) -> Tensor:
        """Logits (..., bins) → numbers (...)."""
        places = torch.linspace(-self.span, self.span, self.bins, device=logits.device, dtype=logits.dtype)
        mean = (logits.softmax(dim=-1) * places).sum(dim=-1)  # not @: tensor cores would round it
        return symexp(mean) if self.symlog else mean

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy (...) of logits (..., bins) for numbers that broadcast against (...)."""
        return -(self.weights(y) * F.log_softmax(logits, dim=-1)).sum(dim=-1)
