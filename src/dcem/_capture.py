"""Run whole functions as CUDA graphs, or on the CPU with compiled solves inside.

    plan = dcem.capture(lambda x0: dcem.minimize(f, solver, x0).x)
    plan(x0)                          # first call: warms up and captures; later calls: copy, replay

A solve then costs one launch instead of hundreds. With `parameters`, the captured function is differentiable:
its backward is a graph of its own, and gradients reach the inputs that require them and the parameters given.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils import _pytree as pytree

from dcem._checks import check_callable
from dcem._compile import Program


class capture:  # noqa: N801 (it reads as a function, which is how it is used)
    """Make a function of tensors run as a CUDA graph or, on the CPU, compile the solves inside it.

    Args:
        f: takes tensors, returns a tensor or any nesting of tuples, lists, dicts and tensors. Its tensors
            must depend only on the arguments, on tensors that stay in place (parameters updated in place
            are fine) and on random numbers. What Python does inside runs once: numbers, branches and the
            identity of tensors that f closes over are frozen.
        parameters: tensors that f closes over and that need gradients.
        changes: tensors that f changes in place (parameters and optimiser state, in a training step). Warming
            up runs f several times, and leaves them and the generator as they were.
        generator: the CUDA generator that f uses, if not the default one. Every replay draws new numbers.
        warmup: runs before capturing.
        eager: run this many first calls without capturing, instead of a warm-up: for a training step, which
            must not run more often than it is called.
        compile: on the CPU, compile the solves inside f; False runs f unchanged.

    Without `parameters` and inputs that require gradients, f runs under `torch.no_grad`. A whole training
    step can still be captured, by a function that enables gradients and takes its step inside.

    Capture before you compute other results with gradients from the same parameters, or after deleting them:
    while such results exist, CUDA cannot record a backward pass, and the call raises an error that says so.

    A call with new shapes, dtypes, devices or requires_grad flags is captured again; nothing is reused for a
    signature it was not made for. Outputs are copies, safe to keep.

    On the CPU, f itself runs as usual, and every `minimize` inside it runs its iterations, including the
    objective, as one program compiled by torch.compile. Compilation takes seconds, once (torch caches it
    between processes). Results are the same up to rounding, and gradients reach everything the objective
    depends on, listed or not. New shapes are compiled again; from the second one on, for any batch size.
    Solves with a `callback`, and objectives that torch cannot compile (after a warning), run uncompiled.
    Values are not checked during the solve: a row without a finite value is reported at the end.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        parameters: Iterable[Tensor] = (),
        changes: Iterable[Tensor] = (),
        generator: Generator | None = None,
        warmup: int = 3,
        eager: int = 0,
        compile: bool = True,
    ) -> None:
        check_callable("capture: f", f)
        self.f = f
        self.parameters = tuple(parameters)
        self.changes = tuple(changes)
        self.generator = generator
        self.warmup = 0 if eager else warmup
        self._eager_calls_left = eager
        self._program = Program() if compile else None
        self._graphs: dict[Any, _Graph | _GraphWithBackward] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        for i, x in enumerate(inputs):
            if not isinstance(x, Tensor):
                raise TypeError(f"capture: argument {i} must be a tensor, got {type(x).__name__}")
        tensors = (*inputs, *self.parameters, *self.changes)
        if not all(x.is_cuda for x in tensors) or not tensors:
            with self._program() if self._program is not None else nullcontext():
                return self.f(*inputs)
        if self._eager_calls_left:
            self._eager_calls_left -= 1
            return self.f(*inputs)
        wants_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *self.parameters))
        key = (wants_grad, *((x.shape, x.dtype, x.device, wants_grad and x.requires_grad) for x in inputs))
        if key not in self._graphs:
            make = _GraphWithBackward if wants_grad else _Graph
            with _explained(), _undisturbed(), self._unchanged():
                self._graphs[key] = make(self, inputs)
        return self._graphs[key](inputs)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        before = [x.detach().clone() for x in self.changes]
        random = self.generator.get_state() if self.generator is not None else None
        yield
        _fill(self.changes, before)
        if self.generator is not None and random is not None:
            self.generator.set_state(random)


class _Graph:
    """Forward only."""

    def __init__(self, owner: capture, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(x.detach().clone() for x in inputs)
        with torch.no_grad():  # a training step enables gradients itself
            _run_aside(lambda: owner.f(*self.inputs), owner.warmup)
            self.graph = _new_graph(owner)
            with _recorded(self.graph):
                self.outputs = owner.f(*self.inputs)

    def __call__(self, inputs: tuple[Tensor, ...]) -> Any:
        _fill(self.inputs, inputs)
        self.graph.replay()
        return pytree.tree_map_only(Tensor, Tensor.clone, self.outputs)


class _GraphWithBackward:
    """A forward graph and a backward graph, joined by an autograd node."""

    def __init__(self, owner: capture, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
        self.parameters = owner.parameters
        self.wanted = [x for x in (*self.inputs, *self.parameters) if x.requires_grad]

        def forward_and_backward() -> None:
            outputs = [y for y in pytree.tree_leaves(owner.f(*self.inputs)) if _differentiable(y)]
            torch.autograd.grad(
                outputs, self.wanted, [torch.zeros_like(y) for y in outputs], allow_unused=True
            )

        _run_aside(forward_and_backward, owner.warmup)
        self.forward_graph, self.backward_graph = _new_graph(owner), torch.cuda.CUDAGraph()
        with _recorded(self.forward_graph):
            self.outputs, self.spec = pytree.tree_flatten(owner.f(*self.inputs))
        live = [y for y in self.outputs if _differentiable(y)]
        if not live:
            raise ValueError("capture: no output depends on anything that requires gradients")
        self.output_grads = [torch.zeros_like(y) for y in live]
        with _recorded(self.backward_graph, self.forward_graph.pool()):
            grads = torch.autograd.grad(live, self.wanted, self.output_grads, allow_unused=True)
        found = iter(grads)
        self.grads = [next(found) if x.requires_grad else None for x in (*self.inputs, *self.parameters)]
        # Keep the buffers, but drop the graph that autograd built while capturing.
        self.live = [y.requires_grad for y in self.outputs if isinstance(y, Tensor)]
        self.outputs = [y.detach() if isinstance(y, Tensor) else y for y in self.outputs]

    def __call__(self, inputs: tuple[Tensor, ...]) -> Any:
        flat = _Replay.apply(self, len(inputs), *inputs, *self.parameters)
        tensors = iter(flat)
        leaves = [next(tensors) if isinstance(y, Tensor) else y for y in self.outputs]
        return pytree.tree_unflatten(leaves, self.spec)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _GraphWithBackward, n_inputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        _fill(graph.inputs, tensors[:n_inputs])
        graph.forward_graph.replay()
        ctx.graph = graph
        flat = tuple(y.clone() for y in graph.outputs if isinstance(y, Tensor))
        ctx.mark_non_differentiable(*(y for y, live in zip(flat, graph.live, strict=True) if not live))
        return flat

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        graph: _GraphWithBackward = ctx.graph
        _fill(graph.output_grads, [g for g, live in zip(grads, graph.live, strict=True) if live])
        graph.backward_graph.replay()
        return None, None, *(None if g is None else g.clone() for g in graph.grads)


def _differentiable(y: Any) -> bool:
    return isinstance(y, Tensor) and y.requires_grad


def _fill(buffers: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


def _new_graph(owner: capture) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    if owner.generator is not None:
        graph.register_generator_state(owner.generator)
    return graph


@contextmanager
def _recorded(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Record what is launched inside, with scratch memory for matrix products that belongs to the graph.

    PyTorch keeps that memory per stream, and all graphs are recorded on the same stream. Two graphs that
    replay at the same time would overwrite each other's, and deleting one would free it for the others.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Pause garbage collection: freeing, for example, another graph calls CUDA and breaks the capture.

    And a warning: parameters may have been used on another stream, but capturing waits for it.
    """
    set_warning = torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    set_warning(False)
    try:
        yield
    finally:
        set_warning(True)
        if enabled:
            gc.enable()


@contextmanager
def _explained() -> Iterator[None]:
    """Explain what to do where CUDA only says that the legacy stream must not depend on a capture."""
    try:
        yield
    except RuntimeError as error:
        if not any("legacy stream" in str(reason) for reason in _chain(error)):
            raise
        raise RuntimeError(
            "capture: a parameter still belongs to results computed before, outside of the capture, with "
            "gradients; delete those results, or call the captured function first"
        ) from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors it was raised while handling: ending a failed capture fails too."""
    while error is not None:
        yield error
        error = error.__context__


def _run_aside(f: Callable[[], Any], times: int) -> None:
    """Run on a side stream, as CUDA requires before a capture: lazy initialisation must not be recorded."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            f()
    torch.cuda.current_stream().wait_stream(stream)
