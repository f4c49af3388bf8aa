"""A run's record at the tracker, and its report on Prefect's page.

The record is a parent run; training runs open their own, find it again after an interruption, and
name the parent in a tag. If the tracker fails, only the record is lost.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from flows.environment import LocalApi
from flows.report import RunReport, markdown
from pipelines.errors import UserError, first_line, redacted
from pipelines.recipes.files import flattened
from pipelines.recipes.recipe import Recipe
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker

logger = logging.getLogger(__name__)

_PARENT_TAG, _NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"  # MLflow's own


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The record of one flow run; empty if the tracker did not accept it."""

    tracker: Tracker
    run_id: str = ""

    @property
    def tags(self) -> Mapping[str, str]:
        """The tag that makes a run a child of this one."""
        return {_PARENT_TAG: self.run_id} if self.run_id else {}

    def used(self, artifact: Artifact) -> None:
        """Record that this run uses `artifact`, which `bertsmith store prune` keeps therefore."""
        if not self.run_id:
            return
        tag = f"bertsmith.uses.{artifact.fingerprint}"
        with suppress(UserError), self.tracker.answering():
            self.tracker.set_tags(self.run_id, {tag: artifact.fingerprint})

    def page(self) -> str:
        """Where the tracker shows it; empty if it has no pages, or does not answer."""
        if not self.run_id or not self.tracker.uri.startswith("http"):
            return ""
        try:
            experiment = self.tracker.experiment_id()
        except UserError:
            return ""
        # Without the view a fresh browser opens the one for language-model applications.
        return (
            f"{self.tracker.shown_uri.rstrip('/')}/#/experiments/{experiment}/runs/{self.run_id}"
            "?workflowType=machine_learning"
        )

    def end(self, error: BaseException | None) -> None:
        """End it: FAILED or KILLED by `error`, else FINISHED."""
        if self.run_id and error is not None:
            self.tracker.abandon(self.run_id, error)
        elif self.run_id:
            self.tracker.finish(self.run_id, {})


def open_parent_run(tracker: Tracker, name: str, recipe: Recipe, page: str) -> ParentRun:
    """A run for the flow run `name`, with the whole recipe as parameters; `page` shows it."""
    values = recipe.model_dump(mode="json", exclude={"runtime"})
    address = redacted(page)
    note = f"[The flow run in Prefect]({address})" if address else "A run without a Prefect server."
    run_id = ""
    try:
        run_id = tracker.create_run(name, "", {}, {_NOTE_TAG: f"Recipe **{recipe.name}**. {note}"})
        with tracker.answering():
            tracker.log_params(run_id, dict(flattened(values)))
            tracker.log_text(run_id, recipe.to_yaml(), "recipe.yaml")
    except UserError as error:
        logger.warning("the record of this run is not whole: %s", error)
    return ParentRun(tracker, run_id)


@contextmanager
def costing_the_page_alone(note: Callable[[str], None]) -> Iterator[None]:
    """Give `note` a sentence if the page cannot be written: by then the work itself is done."""
    try:
        yield
    # Prefect, its HTTP client and what draws the pictures have no kind of error in common.
    except Exception as error:  # noqa: BLE001
        note(f"the report is missing on the run's page: {first_line(error)}")


def flow_run_page() -> str:
    """Prefect's page of the current flow run; empty if its API ends with the run."""
    address = os.environ.get("PREFECT_API_URL")
    if address and address == LocalApi.url_of_this_process:
        return ""
    return flow_run.ui_url or ""


def publish_report(report: RunReport, mlflow_page: str) -> None:
    """Put the report on the page of the flow run; `mlflow_page` is where MLflow shows the run."""
    create_markdown_artifact(
        markdown(report, mlflow_page) + "\n",
        key=f"{report.flow}-report",
        description=f"Report on {report.recipe.name}: stages, figures, models",
    )
