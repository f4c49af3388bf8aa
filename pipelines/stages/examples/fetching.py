"""Shards on their way to this node, fetched by threads before they are read.

Which shard is read next is the order's affair: what is asked for now overtakes what is only ahead.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

Shard = TypeVar("Shard")

_THREADS = 4


class Fetcher(Generic[Shard]):
    """Opens shards by name with `open_shard`, some at a time; each is opened once."""

    def __init__(self, open_shard: Callable[[str], Shard]) -> None:
        self._open_shard = open_shard
        self._shards: dict[str, Future[Shard]] = {}
        self._waiting: deque[str] = deque()
        self._lock = threading.Lock()
        self._num_threads = 0

    def ahead(self, names: Iterable[str]) -> None:
        """Open these one day, in this order, after what is asked for before."""
        with self._lock:
            for name in names:
                if name not in self._shards:
                    self._shards[name] = Future()
                    self._waiting.append(name)
            self._wake()

    def now(self, names: Iterable[str]) -> dict[str, Shard]:
        """These shards, by name; waits for those that are not there yet.

        Raises what opening one raises; asked for again, it is tried again.
        """
        wanted = list(dict.fromkeys(names))
        with self._lock:
            for name in reversed(wanted):
                if name not in self._shards:
                    self._shards[name] = Future()
                elif name in self._waiting:
                    self._waiting.remove(name)
                else:
                    continue
                self._waiting.appendleft(name)
            self._wake()
            futures = {name: self._shards[name] for name in wanted}
        return {name: future.result() for name, future in futures.items()}

    def _wake(self) -> None:
        """Start as many threads as there is work for; each ends when nothing waits any more.

        They are daemons: a process that ends waits for no download.
        """
        missing = min(_THREADS - self._num_threads, len(self._waiting))
        for _ in range(missing):
            threading.Thread(target=self._run, name="fetch", daemon=True).start()
            self._num_threads += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._num_threads -= 1  # it would keep the shards of a reader that is gone
                    return
                name = self._waiting.popleft()
                future = self._shards[name]
            try:
                future.set_result(self._open_shard(name))
            except BaseException as error:  # noqa: BLE001  (raised where the shard is asked for)
                with self._lock:
                    del self._shards[name]
                future.set_exception(error)
