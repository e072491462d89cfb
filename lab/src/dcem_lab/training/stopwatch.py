"""Timing of the parts of a loop, without synchronising with the device."""

import time
from collections import defaultdict
from collections.abc import Iterator
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
        self._events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)
        self._seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def measure(self, name: str, on_host: bool = False) -> Iterator[None]:
        """The time the current stream needs for what is launched inside, or the time on the host."""
        if self._cuda and not on_host:
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            pair[0].record()
            yield
            pair[1].record()
            self._events[name].append(pair)
        else:
            start = time.perf_counter()
            yield
            self._seconds[name].append(time.perf_counter() - start)

    def read(self) -> dict[str, float]:
        """The mean of each part since the last reading. Waits for the device."""
        if self._events:
            torch.cuda.synchronize()
        means = {name: 1000 * sum(times) / len(times) for name, times in self._seconds.items()}
        for name, pairs in self._events.items():
            means[name] = sum(start.elapsed_time(end) for start, end in pairs) / len(pairs)
        self._events.clear()
        self._seconds.clear()
        return means
