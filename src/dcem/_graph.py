"""Helpers for the graph that autograd builds."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# A private name: should a version of torch lack it, kernels refuse such gradients themselves.
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)


def zero_with_graph(x: Tensor) -> Tensor:
    """Zeros with the derivative of x: adding them changes no value."""
    return x - x.detach()


def by_formula(*grads: Tensor | None) -> bool:
    """Must a backward pass leave the kernels to torch's operations?

    For second derivatives, and for a batch of gradients (`is_grads_batched`), which no kernel can read.
    """
    return torch.is_grad_enabled() or any(g is not None and _is_batched(g) for g in grads)


def partials(
    formula: Callable[..., Any], inputs: Sequence[Any], needed: Sequence[bool], grads: Any
) -> tuple[Tensor | None, ...]:
    """The gradients of formula(*inputs) for the needed inputs, as functions of them where a graph is built.

    One input may depend on another, as values do on samples. Its gradient must not pass on to that one here,
    since the caller's autograd does so: hence the aliases.
    """
    wanted = [i for i, need in enumerate(needed) if need]
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [x.view_as(x) if i in wanted else x for i, x in enumerate(inputs)]
        found = torch.autograd.grad(formula(*own), [own[i] for i in wanted], grads, create_graph=further)
    return tuple(found[wanted.index(i)] if i in wanted else None for i in range(len(inputs)))


def depends_on_more(values: Tensor, x: Tensor) -> bool:
    """Does the graph of values contain a leaf other than x? If not, the unrolled graph is not needed."""
    if torch.compiler.is_compiling():  # there is no graph to walk yet
        return True
    nodes, seen = [values.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", x) is not x:
            return True
        nodes += [parent for parent, _ in node.next_functions]
    return False


def with_gradient(f: Callable[[Tensor], Tensor], x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """f at points x (*B, N, n), and its gradient there, 0 where it has none; with a graph if one is built.

    Each value must depend only on its own point. `name` is the caller, for the error message.
    """
    if torch.compiler.is_compiling():
        # Compiled code has no second derivatives, but torch.compile can trace through a function transform.
        gradient, values = torch.func.grad(lambda x: _total(f(x)), has_aux=True)(x)
    else:
        unroll = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if unroll and x.requires_grad else x.detach().requires_grad_()
            values = f(at)
            unroll = unroll and (x.requires_grad or depends_on_more(values, at))
            if not values.requires_grad:
                raise ValueError(f"{name}: f must be differentiable in x, but its values carry no graph")
            (gradient,) = torch.autograd.grad(_total(values)[0], at, create_graph=unroll)
        values = values if unroll else values.detach()
    return values, torch.where(gradient.isfinite(), gradient, 0.0)


def _total(values: Tensor) -> tuple[Tensor, Tensor]:
    """What to differentiate, and the values: a point whose value is not finite has no gradient."""
    return torch.where(values.isfinite(), values, 0.0).sum(), values
