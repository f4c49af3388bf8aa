"""Flow: a registered model answers whole files, shard by shard."""

from typing import cast

from prefect import flow
from pydantic import Field

from flows.progress import ProgressReporter
from flows.run import network_task
from flows.stopping import cancel_if_stopped, flow_in_progress
from pipelines.predict.batch_prediction import BatchSettings, build_predictions
from pipelines.settings import RuntimeSettings
from pipelines.stage import check_nodes, check_store_and_tracker, open_context, open_tracker
from pipelines.store import Artifact


class BatchPredictionRecipe(BatchSettings):
    """The model, the files whose rows it answers, and the place of the answers."""

    runtime: RuntimeSettings = Field(
        default_factory=RuntimeSettings, description="Where store and registry are."
    )


_DEFAULT = BatchPredictionRecipe()


@flow(
    name="predict",
    flow_run_name="{recipe.model} answers files",
    persist_result=False,
    on_crashed=[cancel_if_stopped],
)
def predict(recipe: BatchPredictionRecipe = _DEFAULT) -> Artifact:
    """Answer every row of files with a registered model; a killed run resumes at its shard."""
    settings = BatchSettings(**recipe.model_dump(exclude={"runtime"}))
    with flow_in_progress(), ProgressReporter("predict") as progress:
        check_store_and_tracker(recipe.runtime)
        check_nodes(recipe.runtime)
        context = open_context(recipe.runtime, observe=progress.observe)
        task = network_task(build_predictions).with_options(
            task_run_name=f"answers of {recipe.model}"
        )
        return cast(Artifact, task(settings, open_tracker(recipe.runtime), context))
