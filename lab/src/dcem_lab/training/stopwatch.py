"""Timing of the parts of a loop, without synchronising with the device."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Milliseconds of named parts of a loop; on a CUDA device, on the stream that runs the part.

    >>> watch = Stopwatch(torch.device("cpu"))
    >>> with watch.measure("plan"):
    ...     pass
    >>> list(watch.read())
    ['plan']
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._times: dict[str, list[Callable[[], float]]] = defaultdict(list)  # to call when all is done

    @contextmanager
    def measure(self, name: str, on_host: bool = False) -> Iterator[None]:
        """The time the current stream needs for what is launched inside, or the time on the host."""
        if self._cuda and not on_host:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._times[name].append(lambda: start.elapsed_time(end))
        else:
            began = time.perf_counter()
            yield
            milliseconds = 1000 * (time.perf_counter() - began)
            self._times[name].append(lambda: milliseconds)

    def read(self) -> dict[str, float]:
        """The mean of each part since the last reading. Waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        means = {name: sum(time() for time in times) / len(times) for name, times in self._times.items()}
        self._times.clear()
        return means
