"""What a flow run leaves on its Prefect page: tables of stages and counts, and a report."""

from typing import NamedTuple

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.reporting.figures import figures_of
from flows.reporting.links import model_page, run_page
from flows.reporting.quantities import duration, memory
from flows.reporting.sections import counts, headline, section
from flows.reporting.story import StageRecord, Story
from pipelines.core.errors import UserError
from pipelines.core.tracking.tracker import Tracker


def publish_report(story: Story, tracker: Tracker) -> None:
    """Leave the run's tables and report with the flow run that is going on.

    A tracker that does not answer costs the links to its runs, and the report says so.
    """
    create_table_artifact(
        [_stage(record) for record in story.records],
        key=f"{story.flow}-stages",
        description=f"Stages of {story.recipe.name}: what was made, and what it took",
    )
    create_table_artifact(
        [
            {"stage": record.name, "count or figure": name, "value": value}
            for record in story.records
            if record.artifact is not None
            for name, value in counts(record.artifact)
        ],
        key=f"{story.flow}-counts",
        description=f"Counts and figures of {story.recipe.name}, stage by stage",
    )
    create_markdown_artifact(
        report(story, tracker),
        key=f"{story.flow}-report",
        description=f"Report on {story.recipe.name}: figures, curves and links",
    )


def report(story: Story, tracker: Tracker) -> str:
    """The whole report as Markdown; pictures are part of the text."""
    pages = _run_pages(story, tracker)
    parts = [
        f"# {story.recipe.name}",
        *_failure(story),
        f"{duration(story.seconds)}, at most {memory(story.peak_bytes)} of memory.",
        *_figures(story),
        *_models(story, tracker),
        *_notes(story),
        *pages.trouble,
    ]
    for record in story.records:
        if record.artifact is not None:
            parts.extend(section(record.name, record.artifact))
            page = pages.of.get(record.artifact.fingerprint)
            if page is not None:
                parts.append(f"[The run in MLflow]({page})")
    parts.append(f"## Recipe\n\n```yaml\n{story.recipe.to_yaml()}```")
    return "\n\n".join(parts) + "\n"


class _RunPages(NamedTuple):
    """Pages of the runs that recorded artifacts, by fingerprint; a paragraph where none came."""

    of: dict[str, str]
    trouble: list[str]


def _run_pages(story: Story, tracker: Tracker) -> _RunPages:
    """Ask the tracker for every page until it fails to answer once: it may take long to fail."""
    found: dict[str, str] = {}
    if not tracker.answers():
        missing = f"the MLflow tracker at {tracker.shown_uri} does not answer"
        return _RunPages(found, [f"Links to runs in MLflow are missing: {missing}."])
    try:
        experiment_id = tracker.experiment_id()
        for record in story.records:
            fingerprint = record.artifact.fingerprint if record.artifact is not None else None
            run_id = tracker.find_run(fingerprint) if fingerprint is not None else None
            page = run_page(tracker.uri, experiment_id, run_id) if run_id else None
            if fingerprint is not None and page is not None:
                found[fingerprint] = page
    except UserError as error:
        return _RunPages(found, [f"Links to runs in MLflow are missing: {error}."])
    return _RunPages(found, [])


def _failure(story: Story) -> list[str]:
    """Where and how a run ended that did not come to its end."""
    return [f"**The run {story.failure}**"] if story.failure else []


def _stage(record: StageRecord) -> dict[str, str]:
    artifact = record.artifact
    return {
        "stage": record.name,
        "outcome": record.outcome,
        "time": duration(record.seconds),
        "peak memory": memory(record.peak_bytes),
        "holds": headline(artifact) if artifact is not None else "",
        "fingerprint": artifact.fingerprint[:12] if artifact is not None else "",
    }


def _figures(story: Story) -> list[str]:
    rows = [
        f"| {figure.name} | **{figure.told(figure.value)}** | {figure.beside()} |"
        for figure in figures_of(story)
    ]
    if not rows:
        return []
    return ["## Figures\n\n| figure | reached | to compare |\n|---|---|---|\n" + "\n".join(rows)]


def _models(story: Story, tracker: Tracker) -> list[str]:
    if not story.models:
        return []
    lines = []
    for model in story.models:
        page = model_page(tracker.uri, model)
        name = f"{model.name} version {model.version}"
        lines.append(f"- {model.kind}: " + (f"[{name}]({page})" if page else name))
    lines.extend(
        f"- `{move.name}@{move.alias}` is now version {move.version}" for move in story.promotions
    )
    lines.extend(
        f"- {judgement.name} version {judgement.version}: {judgement.reason}"
        for judgement in story.judgements
    )
    lines.extend(
        f"- `{proof.model.uri}`, loaded in a process of its own, repeated its {proof.metric} of "
        f"{proof.logged:.4g} ({proof.comparison})"
        for proof in story.verifications
    )
    return ["## Models\n\n" + "\n".join(lines)]


def _notes(story: Story) -> list[str]:
    if not story.notes:
        return []
    return ["## On the way\n\n" + "\n".join(f"- {note}" for note in story.notes)]
