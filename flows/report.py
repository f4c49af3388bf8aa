"""What a flow run did: a Markdown report for terminal and Prefect's page, and a record in MLflow.

The record is a parent run; training runs open their own, find it again after an interruption, and
name the parent in a tag. If the tracker fails, only the record is lost.
"""

import logging
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from flows.environment import LocalApi
from flows.progress import duration
from pipelines.errors import UserError, first_line, redacted
from pipelines.recipes.files import flattened
from pipelines.recipes.recipe import Recipe
from pipelines.registry.compare import Comparison
from pipelines.registry.promote import Promotion
from pipelines.registry.prove import Verification
from pipelines.registry.register import RegisteredModel
from pipelines.show import FilledMask
from pipelines.stages import FINETUNING, STAGES
from pipelines.stages.evaluation import confidence_of
from pipelines.stages.figures import HEADER, Row, aligned, encoder_rows, task_rows
from pipelines.store import Artifact
from pipelines.tasks import family_title
from pipelines.tracking.tracker import Tracker

logger = logging.getLogger(__name__)

RANDOM_TWIN = f"{FINETUNING.title}, random"
_PARENT_TAG, _NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"  # MLflow's own
_LINE = 110  # longer texts are cut


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of the run: its result and time."""

    name: str
    artifact: Artifact | None  # None for a stage that makes no artifact, such as registration
    seconds: float

    @property
    def outcome(self) -> str:
        """`built`, `reused` or, without an artifact, `done`."""
        if self.artifact is None:
            return "done"
        return "reused" if self.artifact.reused else "built"


@dataclass(slots=True)
class RunReport:
    """Everything that a run's report shows; it grows while the flow runs."""

    flow: str
    recipe: Recipe
    flow_run_url: str = ""  # empty if no server shows it
    records: list[StageRecord] = field(default_factory=list)
    failure: str = ""  # such as "failed in stage pretraining: …"; empty after success
    notes: list[str] = field(default_factory=list)  # such as "resumed from step 120"
    models: list[RegisteredModel] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)  # made by this run
    comparisons: list[Comparison] = field(default_factory=list)  # of what this run compared
    promotions: list[Promotion] = field(default_factory=list)  # made by this run
    filled_masks: list[FilledMask] = field(default_factory=list)
    seconds: float = 0.0

    def artifact(self, stage: str) -> Artifact | None:
        """What the stage of this title made, if it ran."""
        return next((record.artifact for record in self.records if record.name == stage), None)


def figure_rows(report: RunReport) -> list[Row]:
    """The held-out figures of the encoder and of the task's model."""
    encoder, model = report.artifact("pretraining"), report.artifact(FINETUNING.title)
    rows = [] if encoder is None else encoder_rows(encoder.statistics)
    if model is not None:
        compared, twin = report.artifact("evaluation") or model, report.artifact(RANDOM_TWIN)
        from_random = None if twin is None else twin.statistics
        rows += task_rows(model.statistics, compared.statistics, from_random)
        rows += confidence_of(compared)
    return rows


def markdown(report: RunReport) -> str:
    """The report: stages, figures, examples, models, notes."""
    sections = {
        "Stages": _stages(report),
        "Held-out results": [*aligned(HEADER, figure_rows(report))],
        "Masked words in unseen sentences": _filled_masks(report),
        "Models": _models(report),
        "Notes": [f"- {note}" for note in report.notes],
    }
    parts = [f"# {report.recipe.name}: {duration(report.seconds)}"]
    if report.failure:
        parts.append(f"**The run {report.failure}**")
    parts += [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items() if lines]
    return "\n\n".join(parts)


def print_report(report: RunReport) -> None:
    """Print the report and commands to try next."""
    parts = [markdown(report), "## Next", *_next_commands(report)]
    print("\n" + "\n\n".join(parts))  # noqa: T201


def _next_commands(report: RunReport) -> Iterator[str]:
    named = report.recipe.runtime.home
    home = f" --home {shlex.quote(named)}" if named else ""
    for model in report.models:
        question = (
            "fill-mask 'This is a [MASK].'" if model.kind == "encoder" else "predict 'a text'"
        )
        yield f"    bertsmith {question} --model {model.reference}{home}"
        if model.kind != "encoder":
            yield f"    bertsmith serve {model.reference}{home}"
    yield f"    bertsmith models{home}"
    page = report.flow_run_url
    yield f"This run's page: {page}" if page else f"    bertsmith up{home}"


def _stages(report: RunReport) -> list[str]:
    rows = []
    for record in report.records:
        made = record.artifact
        headline = ""
        if made is not None and made.kind in STAGES:  # an imported model is of no stage
            headline = STAGES[made.kind].headline(made.statistics)
        rows.append((record.name, record.outcome, duration(record.seconds), headline))
    store = redacted(report.recipe.runtime.store_url())
    return [*aligned(("stage", "outcome", "time", "result"), rows), "", f"Store: {store}"]


def _filled_masks(report: RunReport) -> list[str]:
    return [
        f"- {_literal(filled.text)}\n  - was {_literal(filled.hidden)}, predicted: "
        + ", ".join(f"{_literal(c.token)} {c.probability:.0%}" for c in filled.candidates)
        for filled in report.filled_masks
    ]


def _models(report: RunReport) -> list[str]:
    promoted = {(move.name, move.version): move.alias for move in report.promotions}
    lines = []
    for model in report.models:
        alias = promoted.get((model.name, model.version))
        if alias:
            now = f"now models:/{model.name}@{alias}"
        elif model.reused:
            now = "registered before, not promoted in this run"
        else:
            now = "not promoted"
        lines.append(f"- {family_title(model.kind)}: {model.uri}, {now}")
    lines += [
        f"- {proof.model.uri}, loaded in a fresh process, reproduced its held-out score "
        f"({proof.comparison})"
        for proof in report.verifications
    ]
    return lines + [
        f"- models:/{comparison.name}/{comparison.version}: {comparison.reason}"
        for comparison in report.comparisons
    ]


def _literal(text: str) -> str:
    """Text of others as code in one line, so that it cannot be markup."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line if len(line) <= _LINE else line[: _LINE - 1] + '…'}`"


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
            tracker.client().log_text(run_id, recipe.to_yaml(), "recipe.yaml")
    except UserError as error:
        logger.warning("the record of this run is not whole: %s", error)
    return ParentRun(tracker, run_id)


def flow_run_page() -> str:
    """Prefect's page of the current flow run; empty if its API ends with the run."""
    address = os.environ.get("PREFECT_API_URL")
    if address and address == LocalApi.url_of_this_process:
        return ""
    return flow_run.ui_url or ""


def publish_report(report: RunReport) -> None:
    """Put the report on the page of the flow run, or note in it why that failed."""
    try:
        create_markdown_artifact(
            markdown(report) + "\n",
            key=f"{report.flow}-report",
            description=f"Report on {report.recipe.name}: stages, figures, models",
        )
    # Prefect and its HTTP client have no kind of error in common; the work itself is done.
    except Exception as error:  # noqa: BLE001
        report.notes.append(f"the report is missing on the run's page: {first_line(error)}")
