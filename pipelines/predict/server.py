"""A model behind HTTP, in one process: `/invocations` as MLflow's server has it, and health.

A model answers one batch at a time, with all cores. While it computes, requests wait in the order
they came; then as many of them as fit make the next batch. The main thread computes, and a second
one runs the event loop. The other way round one query takes 2 to 3 ms longer.
"""

import asyncio
import json
import logging
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import Full
from threading import Condition
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bert_core.backends.context import Precision, keep_freed_memory
from bert_core.inference.tables import Question, answer_table, check_table
from bert_core.model.catalogue import Model
from pipelines.errors import UserError
from pipelines.io.tables import object_of_pairs, without_lone_surrogates
from pipelines.predict.answers import holds_lists, question_for
from pipelines.predict.tables import Table, json_lines
from pipelines.registry.package import OpenedModel

logger = logging.getLogger(__name__)

# A request is answered whole, and others wait meanwhile.
MOST_BYTES: Final = 1 << 20
MOST_ROWS: Final = 1024
MOST_CHARACTERS: Final = 4 << 20  # that a model reads: four choices are usual
_DIVIDE: Final = "divide it, or answer whole files with `bertsmith predict --batch`"
_FORMATS: Final = (
    'the body must be JSON: {"dataframe_records": [{"text": "…"}]}, or '
    '{"dataframe_split": {"columns": ["text"], "data": [["…"]]}}'
)
_DRAIN_SECONDS: Final = 30
# About 2,048 tokens, which a CPU computes at once: more would make the first wait for the last.
BATCH_CHARACTERS: Final = 8192


@dataclass(slots=True, eq=False)
class _Waiting:
    asked: Table
    num_characters: int
    answer: Future[Table] = field(default_factory=Future)


class Batcher:
    """Hands tables to a model, those that wait together in one call."""

    def __init__(self, answer: Callable[[Table], Table], most_waiting: int) -> None:
        self._answer, self.most_waiting = answer, most_waiting
        self._waiting: deque[_Waiting] = deque()
        self._changed = Condition()
        self._is_closed = False

    def ask(self, asked: Table) -> Future[Table]:
        """The model's answers to a table, once `run` has them.

        Raises Full where too many requests wait. The future raises ValueError for a table that
        cannot be answered.
        """
        waiting = _Waiting(asked, num_characters(asked))
        with self._changed:
            if len(self._waiting) >= self.most_waiting:
                raise Full
            self._waiting.append(waiting)
            self._changed.notify()
        return waiting.answer

    def run(self) -> None:
        """Answer in the thread that calls, until `close`."""
        while batch := self._next_batch():
            answers = answered_together(self._answer, [each.asked for each in batch])
            for each, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    each.answer.set_exception(answer)
                else:
                    each.answer.set_result(answer)

    def close(self) -> None:
        """Let `run` return after the batch that it answers."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _next_batch(self) -> list[_Waiting]:
        """The first that waits, and those behind it that fit and have the same columns.

        A model may answer another question where a column is missing. Empty once it is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return []
            first = self._waiting.popleft()
            batch, total = [first], first.num_characters
            while self._waiting and self._waiting[0].asked.keys() == first.asked.keys():
                total += self._waiting[0].num_characters
                if total > BATCH_CHARACTERS:
                    break
                batch.append(self._waiting.popleft())
            return batch


def num_characters(asked: Table) -> int:
    """Of all texts: how much work a request is, known before anything is encoded.

    A text beside choices is read with each of them.
    """
    total = sum(
        len(text)
        for cells in asked.values()
        for cell in cells
        if cell is not None
        for text in ([cell] if isinstance(cell, str) else cell)
    )
    if asked.keys() == {"text", "choices"}:
        for text, choices in zip(asked["text"], asked["choices"], strict=True):
            total += len(text or "") * max(0, len(choices or ()) - 1)
    return total


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


def application(model: Model, called: str, batcher: Batcher, precision: Precision) -> Starlette:
    """The HTTP application of one model, which a thread that runs the batcher answers.

    Requests that find the batcher full get status 503. Raises UserError for a model that answers no
    table.
    """
    question = question_for(model, called)

    async def invocations(request: Request) -> Response:
        try:
            asked = asked_of_body(await _body(request), question)
            check_table(model, asked)
            # Shielded: an answer that is computed already cannot be cancelled.
            answers = await asyncio.shield(asyncio.wrap_future(batcher.ask(asked)))
            rows = ", ".join(json_lines(answers))
        except ClientDisconnect:
            return Response(status_code=499)  # that nobody reads
        except Full:
            sentence = f"{batcher.most_waiting} requests wait already; ask again in a second"
            return _refusal(503, "TEMPORARILY_UNAVAILABLE", sentence)
        except HTTPException as error:
            return _refusal(error.status_code, "INVALID_PARAMETER_VALUE", error.detail)
        except (UserError, ValueError) as error:
            return _refusal(400, "INVALID_PARAMETER_VALUE", str(error))
        except Exception:  # out of memory, or a bug: this request fails, the server continues
            logger.exception("a request failed")
            return _refusal(500, "INTERNAL_ERROR", "the model failed; the server's log says why")
        return Response(f'{{"predictions": [{rows}]}}', media_type="application/json")

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": called, "precision": precision})

    return Starlette(
        routes=[
            Route("/invocations", invocations, methods=["POST"]),
            Route("/health", health),
            Route("/ping", health),  # as MLflow's server calls it
        ]
    )


def _refusal(status: int, code: str, sentence: str) -> Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error_code": code, "message": sentence}, status, headers)


async def _body(request: Request) -> bytes:
    """The request's JSON; raises HTTPException for another content type and for too many bytes."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(
            415, f"the content type must be application/json, found {content_type[:40]!r}"
        )
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(
                413, f"a request must have at most {MOST_BYTES >> 20} MiB; {_DIVIDE}"
            )
    return bytes(body)


def asked_of_body(body: bytes, question: Question) -> Table:
    """The columns of a request that the question has; others are ignored, as MLflow does.

    Where a row has words in place of its text, the text is left out. Raises UserError for what is
    no such table, and for cells of another kind than the question's, HTTPException for too many
    rows, and for long texts with many choices.
    """
    try:
        table = without_lone_surrogates(json.loads(body, object_pairs_hook=object_of_pairs))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{_FORMATS}; found {body[:40]!r} ({error!s:.80})") from None
    # Texts that are not there are None, as in a data frame; the model says which it misses.
    asked = {
        name: cells
        for name, cells in _columns(table, (*question.columns, *question.optional)).items()
        if name not in question.optional or any(cell is not None for cell in cells)
    }
    for name, cells in asked.items():
        is_list = holds_lists(question, name)
        for row, cell in enumerate(cells):
            if cell is not None and not (_is_texts(cell) if is_list else isinstance(cell, str)):
                kind = "a list of strings" if is_list else "a string"
                raise UserError(f"row {row}: {name} must be {kind}, got {json.dumps(cell):.40}")
    if question.in_place in asked and (first := question.columns[0]) in asked:
        rows = zip(asked[first], asked[question.in_place], strict=True)
        asked[first] = [text if other is None else None for text, other in rows]
    num_read = num_characters(asked)
    if num_read > MOST_CHARACTERS:
        raise HTTPException(
            413,
            "a text is read with each of its choices, together at most "
            f"{MOST_CHARACTERS:,} characters, found {num_read:,}; shorten it, or ask about fewer "
            "at once",
        )
    return asked


def _columns(table: Any, names: Sequence[str]) -> Table:
    """Those of the columns called `names` that the table has."""
    if isinstance(table, dict) and table.get("params"):
        raise UserError("params are not read here: start serve with --min-confidence or the like")
    match table:
        case {"dataframe_records": [_, *_] as rows} if all(isinstance(row, dict) for row in rows):
            _check_num_rows(rows)
            there = [name for name in names if any(name in row for row in rows)]
            return {name: [row.get(name) for row in rows] for name in there}
        case {"dataframe_split": {"columns": list(titles), "data": [_, *_] as rows}} if all(
            isinstance(row, list) and len(row) == len(titles) for row in rows
        ) and _is_texts(titles):
            _check_num_rows(rows)
            places = {title: place for place, title in enumerate(titles)}
            if len(places) < len(titles):
                twice = next(title for place, title in enumerate(titles) if places[title] != place)
                raise UserError(f"columns names {twice!r:.80} twice; give each column its own name")
            return {name: [row[places[name]] for row in rows] for name in names if name in places}
    raise UserError(f"{_FORMATS}, with at least one row; found {json.dumps(table):.80}")


def _check_num_rows(rows: Sequence[Any]) -> None:
    if len(rows) > MOST_ROWS:
        raise HTTPException(
            413, f"a request must have at most {MOST_ROWS:,} rows, found {len(rows):,}; {_DIVIDE}"
        )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def warm_up(opened: OpenedModel, question: Question, precision: Precision) -> None:
    """The first answers compile products and start threads: let no client wait for that."""
    for count in (1, 16):
        rows = {name: [value] * count for name, value in question.example.items()}
        answer_table(*opened, rows, precision)


def serve(
    opened: OpenedModel,
    called: str,
    at: socket.socket,
    most_waiting: int,
    ready: Callable[[], None],
    precision: Precision,
) -> None:
    """Answer requests at a listening socket until SIGTERM or SIGINT; those that came are answered.

    `ready` is called once the model can answer. Raises UserError for a model that
    answers no table.
    """
    keep_freed_memory()
    warm_up(opened, question_for(opened[0], called), precision)
    batcher = Batcher(partial(answer_table, *opened, precision=precision), most_waiting)
    config = uvicorn.Config(
        application(opened[0], called, batcher, precision),
        log_config=None, access_log=False, lifespan="off",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )  # fmt: skip
    server = uvicorn.Server(config)
    # Only the main thread hears of signals; uvicorn's own handler then drains in its thread.
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, server.handle_exit) for number in numbers}
    try:
        ready()  # the socket listens: who connects now is answered
        with ThreadPoolExecutor(1, "http") as pool:
            listening = pool.submit(server.run, [at])
            listening.add_done_callback(lambda _: batcher.close())
            batcher.run()
            listening.result()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
