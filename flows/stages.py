"""The stages as Prefect tasks.

The artifact store is the only cache: Prefect's would not see a change inside a stage. A stage is
tried again where the world can fail, in reading sources and in speaking to the registry; what
computes is not, since it would fail the same way, and Ray replaces workers that die by itself.
"""

from collections.abc import Callable
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from pipelines.core.redaction import without_secrets
from pipelines.core.tracking import is_transient
from pipelines.insight import showcase
from pipelines.registry.promotion import promote
from pipelines.registry.registration import register
from pipelines.registry.verification import verify
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.evaluation.stage import build_evaluation
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.finetuning.stage import build_classifier
from pipelines.stages.labelled.stage import build_task
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.stage import build_vocabulary

_RETRY_DELAYS_SECONDS = [2.0, 15.0, 60.0]


def _world_failed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether a disk or a server did not answer, which waiting may mend."""
    return is_transient(state.result(raise_on_failure=False))


def _stage(function: Callable[..., Any]) -> Task[..., Any]:
    return task(cache_policy=NO_CACHE, persist_result=False)(without_secrets(function))


def _stage_that_reaches_out(function: Callable[..., Any]) -> Task[..., Any]:
    return task(
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(_RETRY_DELAYS_SECONDS),
        retry_delay_seconds=_RETRY_DELAYS_SECONDS,
        retry_condition_fn=_world_failed,
    )(without_secrets(function))


corpus = _stage_that_reaches_out(build_corpus)
vocabulary = _stage(build_vocabulary)
examples = _stage(build_examples)
pretraining = _stage(build_encoder)
labelled_texts = _stage_that_reaches_out(build_task)
finetuning = _stage(build_classifier)
evaluation = _stage(build_evaluation)
registration = _stage_that_reaches_out(register)
verification = _stage_that_reaches_out(verify)
promotion = _stage_that_reaches_out(promote)
filled_masks = _stage(showcase.filled_masks)
predictions = _stage(showcase.predictions)
