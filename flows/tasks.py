"""Functions of the pipelines as Prefect tasks.

The artifact store is the only cache: Prefect's would not see a change inside a stage. A task is
tried again where the world can fail, in reading sources and in speaking to tracker and registry,
and only for that reason: what a computation gets wrong it would get wrong again, and Ray replaces
workers that die by itself.
"""

from collections.abc import Callable
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from pipelines.config.redaction import without_secrets

_RETRY_DELAYS_SECONDS = [2.0, 15.0, 60.0]


def _world_failed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether a disk or a server did not answer, which waiting may mend."""
    from pipelines.tracking.tracker import (
        is_transient,  # MLflow takes a second that others need not
    )

    return is_transient(state.result(raise_on_failure=False))


def plain_task(function: Callable[..., Any]) -> Task[..., Any]:
    """`function` as a task that is run once."""
    return task(cache_policy=NO_CACHE, persist_result=False)(without_secrets(function))


def network_task(function: Callable[..., Any]) -> Task[..., Any]:
    """`function` as a task that is tried again where the world failed."""
    return task(
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(_RETRY_DELAYS_SECONDS),
        retry_delay_seconds=_RETRY_DELAYS_SECONDS,
        retry_condition_fn=_world_failed,
    )(without_secrets(function))
