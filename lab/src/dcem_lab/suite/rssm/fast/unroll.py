"""Filter and open-loop rollouts of an RSSM with hand-written derivatives: `plain_unroll`, but faster.

What makes it fast:
- A GRU's gradient is linear in ∂L/∂h', with coefficients that are known once the forward pass is done. They
  are computed for all steps at once; a backward step is then little more than its matrix products.
- Weight gradients are deferred: every step stores its activations and its pre-activations' gradients in one
  long buffer, and each weight's gradient is a single matrix product over all steps.
- A rollout's first hidden state is the filter's next one (both saw the true observation): it comes for free.
- On a CUDA device, what lies between two matrix products is one kernel (`gru_triton.py`).
- Activations can be in half precision. Its ten bits are what TF32 keeps of a factor, but tensor cores
  multiply it twice as fast. Predicted changes are added to observations in single precision.

Data (observations, actions, noise) gets no gradient, and there are no second derivatives.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional as F

from dcem_lab.suite.rssm.fast.gradients import alike, layer_gradients, loud, louder
from dcem_lab.suite.rssm.fast.products import add_product, affine, product, transposed
from dcem_lab.suite.rssm.nets import BACKWARD
from dcem_lab.suite.rssm.rows import targets

try:
    from dcem_lab.suite.rssm.fast import gru_triton as fused
except ImportError:  # Triton is not installed
    fused = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from dcem_lab.suite.rssm.model import RSSM, RSSMConfig
    from dcem_lab.suite.rssm.nets import EnsembleMLP

aten = torch.ops.aten


class Unrolled(NamedTuple):
    """Imagined steps, in rows of all distances one after another."""

    states: Tensor  # (M, R, ≥ H + X): [ĥ, x̂], and what else fills a row
    x: Tensor  # (M, R, X): x̂
    raw: Tensor  # (M, R, X or 0): the observation head's raw deviations


def fast_unroll(
    model: "RSSM",
    x: Tensor,
    actions: Tensor,
    noise: Tensor | None,
    spans: list[slice],
    dtype: torch.dtype | None = None,
) -> Unrolled:
    """As `dcem_lab.suite.rssm.overshoot.plain_unroll`, with activations of this type; None for that of x."""
    config, gru, dtype = model.config, model.gru, dtype or x.dtype
    # Rows that start at multiples of 16 bytes are read faster: actions and the head have columns of zeros.
    spare = -(config.hidden + gru.input_weight.shape[1]) % _aligned(dtype)
    actions = F.pad(actions, (0, spare)).to(dtype)
    weights = (gru.hidden_weight, F.pad(gru.input_weight, (0, 0, 0, spare)), gru.bias)
    hidden: Tensor = Filter.apply(torch.cat([x.to(dtype), actions], dim=-1), *weights)
    *head, weight, bias = model.observation_head.in_a_row
    spare = -bias.shape[-1] % _aligned(dtype)
    head += [F.pad(weight, (0, spare)), F.pad(bias, (0, spare))]
    return Unrolled(*OpenLoop.apply(config, spans, hidden, x.flatten(0, 1), actions, noise, *weights, *head))


def fast_head(network: "EnsembleMLP", states: Tensor) -> Tensor:
    """What a network on [ĥ, x̂] says of the states of `fast_unroll`: (M, R, outputs)."""
    weight, *rest = network.in_a_row
    weight = F.pad(weight, (0, 0, 0, states.shape[-1] - weight.shape[1]))
    return Head.apply(network.activation, states, weight, *rest)


def _aligned(dtype: torch.dtype) -> int:
    return 16 // dtype.itemsize


class Plain:
    """The operations between the matrix products of unrolled steps, for any device."""

    @staticmethod
    def prepare(gates: Tensor, inputs: Tensor, input_weight: Tensor, bias: Tensor) -> Tensor:
        """What the inputs (M, R, X + U) give to the gates (M, R, 4H), for `advance` to start from."""
        gates.copy_(bias.unsqueeze(1))
        add_product(gates[..., bias.shape[-1] // 4 :], inputs, input_weight)
        return gates

    @staticmethod
    def advance(
        gates: Tensor, prepared: Tensor, hidden: Tensor, hidden_weight: Tensor, bias: Tensor, out: Tensor
    ) -> None:
        """Writes the next hidden state to ``out`` (M, R, H), and n_h, r, z, n to the gates."""
        H = hidden.shape[-1]
        add_product(gates[..., : 3 * H], hidden, hidden_weight)
        new_h, reset, update, new = gates.split(H, dim=-1)
        gates[..., H : 3 * H].sigmoid_()
        new.addcmul_(reset, new_h).tanh_()
        torch.lerp(new, hidden, update, out=out)

    @staticmethod
    def slopes(gates: Tensor, hidden: Tensor) -> Tensor:
        """∂h'/∂(pre-activations n_h, r, z, n_i), all of them elementwise, as (…, 4, H):

        n_i: (1 − z)(1 − n²)    n_h: n_i r    r: n_i n_h r(1 − r)    z: (h − n) z(1 − z)
        """
        new_h, reset, update, new = gates.split(hidden.shape[-1], dim=-1)
        slopes = hidden.new_empty(*hidden.shape[:-1], 4, hidden.shape[-1])
        of_new_h, of_reset, of_update, of_new = slopes.unbind(-2)
        aten.tanh_backward.grad_input(1 - update, new, grad_input=of_new)
        torch.mul(of_new, reset, out=of_new_h)
        aten.sigmoid_backward.grad_input(of_new * new_h, reset, grad_input=of_reset)
        aten.sigmoid_backward.grad_input(hidden - new, update, grad_input=of_update)
        return slopes

    @staticmethod
    def retreat(
        grad_gates: Tensor, gates: Tensor, hidden: Tensor, above: Tensor, below: Tensor | None
    ) -> None:
        """Turns slopes into gradients, given that of the next hidden state, ``above``.

        Adds to ``below``, the hidden state's gradient, what does not pass through the gates.
        """
        grad_gates.mul_(above.unsqueeze(-2))
        if below is not None:
            H = hidden.shape[-1]
            below.addcmul_(above, gates[..., 2 * H : 3 * H])

    @staticmethod
    def layer(
        x: Tensor, weight: Tensor, bias: Tensor, activation: str, before: Tensor, after: Tensor
    ) -> None:
        """A fully connected layer, before and after its activation."""
        affine(bias, x, weight, out=before)
        getattr(aten, activation).out(before, out=after)


def kernels_between_products(x: Tensor) -> Any:
    """`Plain`, or kernels that do the same."""
    return fused if fused is not None and x.is_cuda and x.dtype in fused.DTYPES else Plain


def inner_layers(layers: list[Tensor], network: list[tuple[Tensor, Tensor]], activation: str) -> list[Tensor]:
    """Pre-activations of all layers but the last; what they become is appended to ``layers``, the input."""
    do, befores = kernels_between_products(layers[0]), []
    for weight, bias in network[:-1]:
        before, after = layers[0].new_empty(2, *layers[0].shape[:2], weight.shape[-1])
        do.layer(layers[-1], weight, bias, activation, before, after)
        layers.append(after)
        befores.append(before)
    return befores


class Filter(Function):
    """h_1 … h_L from h_0 = 0 and inputs [x, u] known ahead: (L, B, X + U) → (M, L · B, H), rows by time."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, hidden_weight: Tensor, input_weight: Tensor, bias: Tensor
    ) -> Tensor:
        do = kernels_between_products(inputs)
        hidden_weight, input_weight, bias = alike(inputs.dtype, hidden_weight, input_weight, bias)
        (members, H, _), (length, chunks, _) = hidden_weight.shape, inputs.shape
        inputs = inputs.flatten(0, 1).expand(members, -1, -1)
        gates = inputs.new_empty(members, length * chunks, 4 * H)
        prepared = do.prepare(gates, inputs, input_weight, bias).unflatten(1, (length, chunks))
        gates = gates.unflatten(1, (length, chunks))
        hidden = inputs.new_empty(members, length + 1, chunks, H)
        hidden[:, 0] = 0
        for t in range(length):
            do.advance(gates[:, t], prepared[:, t], hidden[:, t], hidden_weight, bias, out=hidden[:, t + 1])
        ctx.save_for_backward(inputs, hidden_weight, gates, hidden)
        return hidden[:, 1:].flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, hidden_weight, gates, hidden = ctx.saved_tensors
        do = kernels_between_products(inputs)
        H, before, to_hidden = hidden.shape[-1], hidden[:, :-1], transposed(hidden_weight)
        grad = grad.clone(memory_format=torch.contiguous_format).unflatten(1, gates.shape[1:3])
        grad_gates = do.slopes(gates, before)
        for t in reversed(range(gates.shape[1])):
            below = grad[:, t - 1] if t > 0 else None
            do.retreat(grad_gates[:, t], gates[:, t], before[:, t], grad[:, t], below)
            if below is not None:
                add_product(below, grad_gates[:, t].flatten(-2)[..., : 3 * H], to_hidden)
        return None, *_gru_gradients(before.flatten(1, 2), inputs, grad_gates.flatten(-2).flatten(1, 2))


def _gru_gradients(hidden: Tensor, inputs: Tensor, grad_gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of hidden_weight, input_weight and bias, from rows (M, R, H), (M, R, X + U) and (M, R, 4H)."""
    H = hidden.shape[-1]
    of_hidden, of_first = layer_gradients(hidden, grad_gates[..., : 3 * H])
    of_inputs, of_last = layer_gradients(inputs, grad_gates[..., H:])
    return of_hidden, of_inputs, torch.cat([of_first[:, :H], of_last], dim=-1)


class Head(Function):
    """`EnsembleMLP.forward`: (M, R, in) and weight, bias, weight, bias … → (M, R, out) of their type."""

    @staticmethod
    def forward(ctx: Any, activation: str, x: Tensor, *parameters: Tensor) -> Tensor:
        outside, inside = parameters[0].dtype, alike(x.dtype, *parameters)
        weights, biases, layers = inside[::2], inside[1::2], [x]
        befores = inner_layers(layers, list(zip(weights, biases, strict=True)), activation)
        ctx.activation = activation
        ctx.save_for_backward(*weights, *layers, *befores)
        out = x.new_empty(*x.shape[:2], weights[-1].shape[-1])
        return affine(biases[-1], layers[-1], weights[-1], out).to(outside)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        n = (len(saved) + 1) // 3
        weights, layers, befores = saved[:n], saved[n : 2 * n], saved[2 * n :]
        backward = BACKWARD[ctx.activation]
        grad, gradients = louder(grad, layers[0].dtype), list[Tensor]()
        for i in reversed(range(n)):
            gradients[:0] = layer_gradients(layers[i], grad)
            grad = product(grad, transposed(weights[i]))
            if i > 0:
                grad = backward(grad, befores[i - 1], torch.empty_like(grad))
        return None, grad, *gradients


class OpenLoop(Function):
    """Rolls out from h at distance 1 (M, L · B, H) and x at the starts (L · B, X), seeing nothing after.

    ``spans`` are the rows of every distance; ``states`` holds [ĥ, x̂, u] of all rows, the GRU's inputs as they
    stand; ``parameters`` are the observation head's weight, bias, weight, bias …, whose last may have columns
    to spare. Returns the fields of `Unrolled`; only the states are of the type of h.
    """

    @staticmethod
    def forward(
        ctx: Any,
        config: "RSSMConfig",
        spans: list[slice],
        hidden: Tensor,
        start: Tensor,
        actions: Tensor,
        noise: Tensor | None,
        hidden_weight: Tensor,
        input_weight: Tensor,
        bias: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        do = kernels_between_products(hidden)
        gru = (hidden_weight, input_weight, bias)
        hidden_weight, input_weight, bias, *head = alike(hidden.dtype, *gru, *parameters)
        weights, biases = head[::2], head[1::2]
        (members, _, H), X, rows = hidden.shape, start.shape[-1], spans[-1].stop
        S, outputs = H + X, 2 * X if config.predict_std else X
        states = hidden.new_empty(members, rows, H + input_weight.shape[1])
        gates = hidden.new_empty(members, spans[-1].start, 4 * H)
        inner = [hidden.new_empty(2, members, rows, w.shape[-1]) for w in weights[:-1]]
        heads = hidden.new_empty(members, rows, weights[-1].shape[-1])
        exact = start.new_empty(members, rows, X)
        # No action follows a chunk's last observation, or the last distance; what stands in its place is
        # multiplied with zeros, and so has to be finite.
        actions = F.pad(actions, (0, 0, 0, 0, 0, 1))
        states[:, spans[-1].start :, S:] = 0
        states[:, : spans[-1].start, S:] = targets(actions[1:], len(spans) - 1)

        previous = start.expand(members, -1, -1)
        for d, span in enumerate(spans):
            h, x = states[:, span, :H], exact[:, span]
            if d == 0:
                h.copy_(hidden)
            else:
                origin = _going_on(spans, d)
                source, step = states[:, origin], gates[:, origin]
                prepared = do.prepare(step, source[..., H:], input_weight, bias)
                do.advance(step, prepared, source[..., :H], hidden_weight, bias, out=h)
                previous = exact[:, origin]
            layer = h
            for i, (before, after) in enumerate(inner):
                do.layer(layer, weights[i], biases[i], config.activation, before[:, span], after[:, span])
                layer = after[:, span]
            affine(biases[-1], layer, weights[-1], heads[:, span])
            mean, raw = heads[:, span, :X], heads[:, span, X:outputs].to(x.dtype)
            if config.residual:
                torch.add(previous, mean, out=x)
            else:
                x.copy_(mean)
            if noise is not None:
                x.add_(noise[:, span], alpha=config.std)
                if raw.numel():
                    x.addcmul_(F.softplus(raw), noise[:, span])
            states[:, span, H:S] = x

        ctx.config, ctx.spans = config, spans
        ctx.save_for_backward(noise, states, gates, heads, hidden_weight, input_weight, *weights, *inner)
        return states, exact, heads[..., X:outputs].to(exact.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_states: Tensor, grad_exact: Tensor, grad_raw: Tensor
    ) -> tuple[Tensor | None, ...]:
        spans = ctx.spans
        noise, states, gates, heads, hidden_weight, input_weight, *rest = ctx.saved_tensors
        weights, inner = rest[: len(rest) // 2 + 1], rest[len(rest) // 2 + 1 :]
        backward = BACKWARD[ctx.config.activation]
        H, X = hidden_weight.shape[1], grad_exact.shape[-1]
        S, outputs = H + X, X + grad_raw.shape[-1]
        to_state = _to_state(hidden_weight, input_weight)
        do, to_below = kernels_between_products(states), [transposed(w) for w in weights]

        going_on = states[:, : spans[-1].start]
        grad = grad_states.clone(memory_format=torch.contiguous_format)
        grad[..., H:S].add_(grad_exact, alpha=loud(grad.dtype))
        grad_gates = do.slopes(gates, going_on[..., :H])
        grad_inner = [torch.empty_like(before) for before, _ in inner]
        grad_heads = torch.zeros_like(heads)
        spread = None
        if outputs > X:
            grad_heads[..., X:outputs] = louder(grad_raw, heads.dtype)
            if noise is not None:
                spread = (torch.sigmoid(heads[..., X:outputs]) * noise).to(heads.dtype)

        for d in reversed(range(len(spans))):
            span = spans[d]
            grad_h, grad_x = grad[:, span, :H], grad[:, span, H:S]
            grad_heads[:, span, :X] = grad_x
            if spread is not None:
                grad_heads[:, span, X:outputs].addcmul_(grad_x, spread[:, span])
            layer = grad_heads[:, span]
            for i in reversed(range(len(inner))):
                layer = backward(
                    product(layer, to_below[i + 1]), inner[i][0, :, span], grad_inner[i][:, span]
                )
            add_product(grad_h, layer, to_below[0])
            if d > 0:
                origin = _going_on(spans, d)
                below_h, below_x = grad[:, origin, :H], grad[:, origin, H:S]
                do.retreat(grad_gates[:, origin], gates[:, origin], going_on[:, origin, :H], grad_h, below_h)
                to_state(grad[:, origin], grad_gates[:, origin].flatten(-2))
                if ctx.config.residual:
                    below_x.add_(grad_x)
                # The rows whose chunk ended one distance earlier were never advanced.
                grad_gates[:, origin.stop : spans[d - 1].stop] = 0

        grad_gru = _gru_gradients(going_on[..., :H], going_on[..., H:], grad_gates.flatten(-2))
        layers = [states[..., :H], *(after for _, after in inner)]
        grad_parameters: list[Tensor] = []
        for layer, grad_layer in zip(layers, [*grad_inner, grad_heads], strict=True):
            grad_parameters += layer_gradients(layer, grad_layer)
        return None, None, grad[:, spans[0], :H], None, None, None, *grad_gru, *grad_parameters


def _to_state(hidden_weight: Tensor, input_weight: Tensor) -> Callable[[Tensor, Tensor], object]:
    """Adds to the gradient of rows [h, x, u] what comes from gates (M, R, 4H): h feeds the first three."""
    (members, H, _), width = hidden_weight.shape, hidden_weight.shape[1] + input_weight.shape[1]
    if hidden_weight.is_cuda:  # one launch is faster, although a third of its factors are zero
        both = hidden_weight.new_zeros(members, 4 * H, width)
        both[:, : 3 * H, :H], both[:, H:, H:] = hidden_weight.mT, input_weight.mT
        return lambda below, gates: [add_product(below, gates, both)]

    to_hidden, to_inputs = transposed(hidden_weight), transposed(input_weight)
    return lambda below, gates: [
        add_product(below[..., :H], gates[..., : 3 * H], to_hidden),
        add_product(below[..., H:], gates[..., H:], to_inputs),
    ]


def _going_on(spans: list[slice], d: int) -> slice:
    """The rows at the distance before spans[d] that have one more step to go: a prefix."""
    start = spans[d - 1].start
    return slice(start, start + spans[d].stop - spans[d].start)
