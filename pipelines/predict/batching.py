"""Requests that wait at the same time are answered together.

A model answers one batch at a time, with all cores. While it computes, requests wait in the order
they came; then as many of them as fit make the next batch. No request waits for others to come.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from pipelines.predict.tables import Table

# About 2,048 tokens, which a CPU computes at once: more would make the first wait for the last.
BATCH_CHARACTERS: Final = 8192


class FullError(Exception):
    """A request that came when as many as may wait were waiting."""


@dataclass(slots=True, eq=False)
class _Waiting:
    asked: Table
    num_characters: int
    answer: "asyncio.Future[Table]"


class Batcher:
    """Hands tables to a model, those that wait together in one call; see the module."""

    def __init__(
        self, answer: Callable[[Table], Table], thread: Executor, most_waiting: int
    ) -> None:
        """`answer` runs in `thread`."""
        self._answer, self._thread, self._most_waiting = answer, thread, most_waiting
        self._waiting: deque[_Waiting] = deque()
        self._work: asyncio.Task[None] | None = None

    async def ask(self, asked: Table) -> Table:
        """The model's answers to a table.

        Raises FullError where too many requests wait, and ValueError where it cannot be answered.
        """
        if len(self._waiting) >= self._most_waiting:
            raise FullError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Table] = loop.create_future()
        self._waiting.append(_Waiting(asked, num_characters(asked), answer))
        if self._work is None:
            self._work = loop.create_task(self._answer_waiting())
        return await answer

    async def _answer_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        # Requests of the same turn of the loop join the batch.
        await asyncio.sleep(0)
        while self._waiting:
            batch = self._next_batch()
            tables = [each.asked for each in batch]
            answers: Sequence[Table | Exception]
            try:
                answers = await loop.run_in_executor(
                    self._thread, answered_together, self._answer, tables
                )
            except Exception as error:  # noqa: BLE001  (each of them is to hear of it)
                answers = [error] * len(batch)
            for each, answer in zip(batch, answers, strict=True):
                if each.answer.cancelled():
                    continue
                if isinstance(answer, Exception):
                    each.answer.set_exception(answer)
                else:
                    each.answer.set_result(answer)
        self._work = None

    def _next_batch(self) -> list[_Waiting]:
        """The first that waits, and those behind it that fit and have the same columns.

        A model may answer another question where a column is missing.
        """
        first = self._waiting.popleft()
        batch, total = [first], first.num_characters
        while self._waiting and self._waiting[0].asked.keys() == first.asked.keys():
            total += self._waiting[0].num_characters
            if total > BATCH_CHARACTERS:
                break
            batch.append(self._waiting.popleft())
        return batch


def num_characters(asked: Table) -> int:
    """Of all texts: how much work a request is, known before anything is encoded."""
    return sum(
        sum(map(len, cell)) if isinstance(cell, list) else len(cell or "")
        for cells in asked.values()
        for cell in cells
    )


def answered_together(
    answer: Callable[[Table], Table], tables: Sequence[Table]
) -> list[Table | Exception]:
    """What `answer` gives for each of the tables, which have the same columns, in one call.

    Where it cannot answer one of them, each is asked alone.
    """
    merged = {name: [cell for table in tables for cell in table[name]] for name in tables[0]}
    try:
        answers = answer(merged)
    except Exception as error:  # noqa: BLE001  (one bad table must not fail the others)
        if len(tables) == 1:
            return [error]
        return [answered_together(answer, [table])[0] for table in tables]
    parts: list[Table | Exception] = []
    start = 0
    for table in tables:
        end = start + len(next(iter(table.values()), []))
        parts.append({name: values[start:end] for name, values in answers.items()})
        start = end
    return parts
