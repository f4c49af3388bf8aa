"""The actor between the workers of a training run and the process that started them.

Nothing heavy is imported here: its process needs neither torch nor MLflow.
"""

import asyncio
from collections import deque

from pipelines.stage import Progress

_MAX_QUEUED = 1000  # progress that was not fetched yet


class Messages:
    """The actor between the workers and the process that started them; neither can call the other.

    Workers send their progress. Rank 0 waits for the wish to stop and passes it on with a step's
    counts, so that all ranks save and end after the same step.
    """

    def __init__(self) -> None:
        self._progress: deque[Progress] = deque(maxlen=_MAX_QUEUED)
        self._stop = asyncio.Event()

    async def send(self, progress: Progress) -> None:
        self._progress.append(progress)

    async def fetch(self) -> list[Progress]:
        waiting = list(self._progress)
        self._progress.clear()
        return waiting

    async def stop(self) -> None:
        self._stop.set()

    async def stop_wish(self) -> None:
        await self._stop.wait()
