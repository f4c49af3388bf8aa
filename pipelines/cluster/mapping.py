"""Ray tasks: a function mapped over shards, and a question to one node."""

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import lru_cache
from typing import Any, Generic, TypeVar

from pipelines.cluster.connection import connect
from pipelines.config.errors import UserError, first_line

import ray  # isort: skip  (after pipelines.cluster.connection, which sets its environment)
from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_END_SECONDS = 90.0  # of tasks that are interrupted
_MOMENT_SECONDS = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_tasks(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    num_workers: int,
    cpus_each: float = 1,
    on_result: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """`[function(item) for item in items]`, as Ray tasks, at most `num_workers` at once.

    `function` and the items are pickled: pass large inputs as paths. Items of an iterator are
    taken as workers become free. A task whose worker dies is run again; an error that `function`
    raises is raised here as it was. A task that only waits for others holds no CPU (`cpus_each` =
    0), and gets time to end them if an error or a stop ends this call. `on_result(index, result)`
    is called in the order of completion.
    """
    if num_workers < 1:
        raise UserError(f"the number of workers must be at least 1, got {num_workers}")
    connect()
    remote = ray.remote(num_cpus=cpus_each, max_retries=3)(_call)
    handle = ray.put(function)
    results: dict[int, Result] = {}
    # Futures, because a signal that arrives in `ray.wait` is lost if it raises anything other than
    # KeyboardInterrupt, and Prefect's handler does.
    running: dict[Future[Any], tuple[int, ray.ObjectRef]] = {}

    def take_one() -> None:
        ready = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
        index, _ = running.pop(ready)
        results[index] = _result_of(ready)
        if on_result is not None:
            on_result(index, results[index])

    try:
        for index, item in enumerate(items):
            if len(running) >= num_workers:
                take_one()
            task = remote.remote(handle, item)
            running[task.future()] = index, task
        while running:
            take_one()
        return [results[index] for index in sorted(results)]
    finally:
        _end([task for _, task in running.values()], politely=cpus_each == 0)


class Shared(Generic[Result]):
    """A value for tasks; each worker process reads it once for all of its tasks."""

    def __init__(self, value: Result) -> None:
        connect()
        self._handle = ray.put(value)

    def value(self) -> Result:
        """The value; do not change it."""
        found: Result = _read(self._handle)
        return found


@lru_cache(maxsize=1)
def _read(handle: "ray.ObjectRef") -> Any:
    return ray.get(handle)


def _end(tasks: "list[ray.ObjectRef]", *, politely: bool) -> None:
    """End tasks whose results are not needed any more.

    If a task is killed, what it started survives: the workers of a training run would keep their
    places in the cluster. So such a task is interrupted, and ends its training run itself.
    """
    if not tasks:
        return
    if politely:
        for task in tasks:
            ray.cancel(task, force=False)
    # A task that ends by itself while Ray kills it can abort this process ("Tried to complete task
    # that was not pending"), and what ended one, a full disk for example, soon ends the others.
    seconds = _END_SECONDS if politely else _MOMENT_SECONDS
    _, running = ray.wait(tasks, num_returns=len(tasks), timeout=seconds)
    for task in running:
        ray.cancel(task, force=True)  # an interrupted import would spoil the worker


def _call(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)


def _result_of(task: Future[Any]) -> Any:
    try:
        return task.result()
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except RayError as error:
        if is_loss(error):
            raise UserError(
                f"Ray lost a task: {what_to_do(error)}: what is finished is kept"
            ) from error
        raise


def ask_node(
    node_id: str, function: Callable[..., Any], *args: Any, max_retries: int = 0
) -> "ray.ObjectRef":
    """`function(*args)` as a task on that node, which waits for no free CPU.

    Its worker process ends with it: an idle one would hold memory, also of a GPU.
    """
    there: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)  # Ray's types lack it
    task = ray.remote(num_cpus=0, max_calls=1, max_retries=max_retries, scheduling_strategy=there)(
        function
    )
    return task.remote(*args)


def answer_of(reference: "ray.ObjectRef", where: str, seconds: float) -> Any:
    """What `ask_node` returned for the node `where`; raises UserError if no answer comes."""
    try:
        return ray.get(reference, timeout=seconds)
    except GetTimeoutError as error:
        ray.cancel(reference, force=True)  # it would run once the node answers
        raise UserError(
            f"{where} did not answer within {seconds:.0f} s; look at it with `ray status`, "
            "or run again when it is less busy"
        ) from error
    except RayTaskError as error:
        raise UserError(
            f"{where} cannot run Bertsmith: {_last_line(error)}; "
            + (
                "install there what is installed here"
                if isinstance(error.cause, ImportError)
                else "look at that node's logs"
            )
        ) from error
    except RayError as error:
        raise UserError(
            f"{where} cannot start what this process ships to it: {_last_line(error)}; look at "
            "that node's logs"
        ) from error


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def is_loss(error: BaseException) -> bool:
    """Whether a worker process or a node was lost, most often for lack of memory."""
    return isinstance(error, RayError) and not isinstance(error, (RayTaskError, TaskCancelledError))


def what_to_do(loss: BaseException) -> str:
    """The first of Ray's many lines on a loss, and where to look."""
    said = first_line(loss).rstrip(".:")
    return f"{said}; look at the memory and the logs of its node, and run again"
