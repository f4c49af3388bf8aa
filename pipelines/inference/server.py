"""A model behind HTTP, in one process: `/invocations` as MLflow's server has it, health, metrics.

The main thread computes batches (see `batching`), and a second one runs the event loop that reads
requests and writes answers. The other way round one query takes 2 to 3 ms longer.
"""

import logging
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from bert_core.backends.memory import keep_freed_memory
from bert_core.backends.precision import Precision
from bert_core.inference.tables import Question, answer_table, check_table
from pipelines.config.errors import UserError
from pipelines.inference.answers import question_for
from pipelines.inference.batching import Batcher, FullError, asked_of_body
from pipelines.inference.tables import Table, json_lines
from pipelines.registry.opening import OpenedModel

logger = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_MOST_BYTES: Final = 16 << 20
_TOO_LARGE: Final = (
    f"a request must have at most {_MOST_BYTES >> 20} MiB; divide it, or answer whole files with "
    "`bertsmith predict --batch`"
)
_DRAIN_SECONDS: Final = 30
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)


class _Metrics:
    """What Prometheus reads of one server."""

    def __init__(self, called: str) -> None:
        self.registry = CollectorRegistry()
        new: Callable[..., Histogram] = partial(Histogram, registry=self.registry)
        self.answered = Counter(
            "bertsmith_serve_requests", "Requests, by the status of their answer.", ["status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = new("bertsmith_serve_seconds", "From request to answer.", buckets=_SECONDS)
        self.waited = new(
            "bertsmith_serve_wait_seconds", "How long the first request of a batch waited.",
            buckets=_SECONDS,
        )  # fmt: skip
        self.together = new(
            "bertsmith_serve_batch_requests", "Requests answered together.", buckets=_SIZES
        )
        self.waiting = Gauge(
            "bertsmith_serve_waiting", "Requests that wait for a batch.", registry=self.registry
        )
        model = Gauge(
            "bertsmith_serve_model", "1, and which model answers.", ["model"],
            registry=self.registry,
        )  # fmt: skip
        model.labels(called).set(1)

    def batch(self, num_requests: int, waited: float) -> None:
        """Count a batch."""
        self.together.observe(num_requests)
        self.waited.observe(waited)


def application(
    opened: OpenedModel,
    called: str,
    thread: Executor,
    most_waiting: int,
    precision: Precision,
) -> Starlette:
    """The HTTP application of one model, which answers in `thread` and in `precision`.

    At most `most_waiting` requests wait for their batch; further ones get status 503. Raises
    UserError for a model that answers no table.
    """
    model, tokenizer = opened
    question = question_for(model, called)
    metrics = _Metrics(called)
    answer: Callable[[Table], Table] = partial(answer_table, model, tokenizer, precision=precision)
    batcher = Batcher(answer, thread, most_waiting=most_waiting, observe=metrics.batch)
    metrics.waiting.set_function(lambda: batcher.num_waiting)

    async def invocations(request: Request) -> Response:
        start = time.perf_counter()
        response = await _response(request)
        metrics.answered.labels(response.status_code).inc()
        metrics.seconds.observe(time.perf_counter() - start)
        return response

    async def _response(request: Request) -> Response:
        """The answers, or one sentence that says why there are none."""
        try:
            asked = asked_of_body(await _body(request), question)
            check_table(model, asked)
            answers = await batcher.ask(asked)
        except FullError:
            sentence = f"{most_waiting} requests wait already; ask again in a second"
            return _refusal(503, "TEMPORARILY_UNAVAILABLE", sentence)
        except _TooLargeError:
            return _refusal(413, "INVALID_PARAMETER_VALUE", _TOO_LARGE)
        except (UserError, ValueError) as error:
            return _refusal(400, "INVALID_PARAMETER_VALUE", str(error))
        except Exception:  # out of memory, or a bug: this request fails, the server continues
            logger.exception("a request failed")
            return _refusal(500, "INTERNAL_ERROR", "the model failed; the server's log says why")
        rows = ", ".join(json_lines(answers))
        return Response(f'{{"predictions": [{rows}]}}', media_type="application/json")

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": called, "precision": precision})

    async def measured(request: Request) -> Response:
        return PlainTextResponse(generate_latest(metrics.registry))

    return Starlette(
        routes=[
            Route("/invocations", invocations, methods=["POST"]),
            Route("/health", health),
            Route("/ping", health),  # as MLflow's server calls it
            Route("/metrics", measured),
        ]
    )


class _TooLargeError(Exception):
    pass


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise _TooLargeError
    return bytes(body)


def _refusal(status: int, code: str, sentence: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error_code": code, "message": sentence}, status, headers)


class _Server(uvicorn.Server):
    """Calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._ready()


def serve(
    opened: OpenedModel,
    called: str,
    at: socket.socket,
    most_waiting: int,
    ready: Callable[[], None],
    precision: Precision,
) -> None:
    """Answer requests at a bound socket until SIGTERM or SIGINT; those that came are answered.

    `ready` is called once the first request would be answered. Raises UserError for a model that
    answers no table.
    """
    keep_freed_memory()
    _warm_up(opened, question_for(opened[0], called), precision)
    here = _CallingThread()
    app = application(opened, called, here, most_waiting, precision)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )  # fmt: skip
    server = _Server(config, ready)
    # Only the main thread hears of signals; uvicorn's own handler then drains in its thread.
    kept = {
        number: signal.signal(number, server.handle_exit)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        with ThreadPoolExecutor(1, "http") as pool:
            listening = pool.submit(server.run, [at])
            listening.add_done_callback(lambda _: here.shutdown())
            here.run()
            listening.result()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class _CallingThread(Executor):
    """Runs what other threads submit in the thread that calls `run`, until `shutdown`."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(
        self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> Future[_T]:
        """A future of the call."""
        future: Future[_T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:  # noqa: BLE001  (the future carries it)
                future.set_exception(error)

        self._calls.put(call)
        return future

    def run(self) -> None:
        """Run the calls in their order."""
        while (call := self._calls.get()) is not None:
            call()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let `run` return after the calls that came before."""
        self._calls.put(None)


def _warm_up(opened: OpenedModel, question: Question, precision: Precision) -> None:
    """The first answers compile products and start threads: let no client wait for that."""
    for count in (1, 16):
        rows = {name: [value] * count for name, value in question.example.items()}
        answer_table(*opened, rows, precision)
