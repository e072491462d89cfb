"""Small things about the graph that autograd builds."""

import torch
from torch import Tensor


def zero_with_graph(x: Tensor) -> Tensor:
    """Zeros whose derivative is that of x: added to other values, they leave them exactly as they are."""
    return x - x.detach()


def depends_on_more(values: Tensor, x: Tensor) -> bool:
    """Does the graph of values hold a leaf other than x? If not, the unrolled graph is not needed."""
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
