"""Requests that wait at the same time are answered together.

A model answers one batch at a time, with all cores. While it computes, requests wait in the order
they came; then as many of them as fit make the next batch. No request waits for others to come.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from bert_core.inference.tables import Question
from pipelines.config.errors import UserError
from pipelines.inference.tables import Table
from pipelines.io.tables import without_lone_surrogates

_FORMATS: Final = (
    'the body must be JSON: {"dataframe_records": [{"text": "…"}]}, or '
    '{"dataframe_split": {"columns": ["text"], "data": [["…"]]}}'
)
# About 2,048 tokens, which a CPU computes at once: more would make the first wait for the last.
BATCH_CHARACTERS: Final = 8192


def asked_of_body(body: bytes, question: Question) -> Table:
    """The columns of a request that the question has; others are ignored, as MLflow does.

    Raises UserError for what is no such table, and for cells of another kind than the question's.
    """
    try:
        given = without_lone_surrogates(json.loads(body))
    except (ValueError, RecursionError):
        raise UserError(f"{_FORMATS}; found {body[:40]!r}") from None
    found = _columns(given)
    # In place of texts that are not there, as in a data frame; the model says which it misses.
    asked = {
        name: found[name] for name in (*question.columns, *question.optional)
        if name in found
        and not (name in question.optional and all(cell is None for cell in found[name]))
    }  # fmt: skip
    for name, cells in asked.items():
        is_list = name == question.in_place or isinstance(question.example.get(name), list)
        for row, cell in enumerate(cells):
            if cell is not None and not (_is_texts(cell) if is_list else isinstance(cell, str)):
                wanted = "a list of strings" if is_list else "a string"
                raise UserError(f"row {row}: {name} must be {wanted}, got {json.dumps(cell):.40}")
    return asked


def _columns(given: Any) -> Table:
    match given:
        case {"dataframe_records": [_, *_] as rows} if all(isinstance(row, dict) for row in rows):
            names = dict.fromkeys(name for row in rows for name in row)
            return {name: [row.get(name) for row in rows] for name in names}
        case {"dataframe_split": {"columns": list(names), "data": [_, *_] as rows}} if all(
            isinstance(row, list) and len(row) == len(names) for row in rows
        ) and _is_texts(names):
            return {name: [row[place] for row in rows] for place, name in enumerate(names)}
    raise UserError(f"{_FORMATS}, with at least one row; found {json.dumps(given):.80}")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def num_characters(asked: Table) -> int:
    """Of all texts: how much work a request is, known before anything is encoded."""
    return sum(_length(cell) for cells in asked.values() for cell in cells)


def _length(cell: str | Sequence[str] | None) -> int:
    if cell is None or isinstance(cell, str):
        return len(cell or "")
    return sum(map(len, cell))


def merged(tables: Sequence[Table]) -> Table:
    """The rows of tables with the same columns, in their order."""
    return {name: [cell for table in tables for cell in table[name]] for name in tables[0]}


def divided(answers: Table, sizes: Sequence[int]) -> list[Table]:
    """The answers of each table whose rows were merged: the other way round."""
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [
        {name: values[end - size : end] for name, values in answers.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]


class FullError(Exception):
    """A request that came when as many as may wait were waiting."""


@dataclass(slots=True, eq=False)
class _Waiting:
    asked: Table
    size: int
    answer: "asyncio.Future[Table]"
    since: float


def num_together(sizes: Iterable[int], most: int) -> int:
    """How many of the first requests fit into `most` characters; a longer one goes alone."""
    total = count = 0
    for size in sizes:
        total += size
        if count and total > most:
            break
        count += 1
    return count


def answered_together(
    answer: Callable[[Table], Table], asked: Sequence[Table]
) -> list[Table | Exception]:
    """What `answer` gives for each table, or why it gives nothing, from as few calls as can be.

    Tables with the same columns are one: a model may answer another question where a column is
    missing. Where it cannot answer one of them, each is asked alone.
    """
    found: list[Table | Exception] = [{}] * len(asked)
    kinds: dict[frozenset[str], list[int]] = {}
    for place, table in enumerate(asked):
        kinds.setdefault(frozenset(table), []).append(place)
    for places in kinds.values():
        tables = [asked[place] for place in places]
        sizes = [len(next(iter(table.values()), [])) for table in tables]
        try:
            parts: Sequence[Table | Exception] = divided(answer(merged(tables)), sizes)
        except Exception as error:  # noqa: BLE001  (one bad table must not fail the others)
            if len(tables) == 1:
                parts = [error]
            else:
                parts = [answered_together(answer, [table])[0] for table in tables]
        for place, part in zip(places, parts, strict=True):
            found[place] = part
    return found


class Batcher:
    """Hands tables to a model, those that wait together in one call; see the module."""

    def __init__(
        self,
        answer: Callable[[Table], Table],
        thread: Executor,
        *,
        most_waiting: int,
        observe: Callable[[int, float], None] = lambda num_requests, waited: None,
    ) -> None:
        """`answer` runs in `thread`; `observe` hears of each batch and of its longest wait."""
        self._answer, self._thread, self._observe = answer, thread, observe
        self._most_waiting = most_waiting
        self._waiting: deque[_Waiting] = deque()
        self._work: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that no batch has taken yet."""
        return len(self._waiting)

    async def ask(self, asked: Table) -> Table:
        """The model's answers to a table.

        Raises FullError where too many requests wait, and ValueError where it cannot be answered.
        """
        if len(self._waiting) >= self._most_waiting:
            raise FullError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Table] = loop.create_future()
        self._waiting.append(_Waiting(asked, num_characters(asked), answer, time.monotonic()))
        if self._work is None:
            self._work = loop.create_task(self._answer_waiting())
        return await answer

    async def _answer_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        # Requests of the same turn of the loop join the batch.
        await asyncio.sleep(0)
        while self._waiting:
            count = num_together((each.size for each in self._waiting), BATCH_CHARACTERS)
            taken = [self._waiting.popleft() for _ in range(count)]
            batch = [each for each in taken if not each.answer.cancelled()]
            if not batch:
                continue
            self._observe(len(batch), time.monotonic() - batch[0].since)
            tables = [each.asked for each in batch]
            found: Sequence[Table | Exception]
            try:
                found = await loop.run_in_executor(
                    self._thread, answered_together, self._answer, tables
                )
            except Exception as error:  # noqa: BLE001  (each of them is to hear of it)
                found = [error] * len(batch)
            for each, one in zip(batch, found, strict=True):
                if each.answer.cancelled():
                    continue
                if isinstance(one, Exception):
                    each.answer.set_exception(one)
                else:
                    each.answer.set_result(one)
        self._work = None
