"""What a flow run leaves on its Prefect page: tables of stages and counts, and a report."""

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.reporting.figures import figures_of
from flows.reporting.links import model_page, run_page
from flows.reporting.quantities import duration, memory
from flows.reporting.sections import counts, headline, section
from flows.reporting.story import StageRecord, Story
from pipelines.core.tracking import Tracker


def publish_report(story: Story, tracker: Tracker) -> None:
    """Leave the run's tables and report with the flow run that is going on."""
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
    parts = [
        f"# {story.recipe.name}",
        f"{duration(story.seconds)}, at most {memory(story.peak_bytes)} of memory.",
        *_figures(story),
        *_models(story, tracker),
        *_notes(story),
    ]
    for record in story.records:
        if record.artifact is not None:
            parts.extend(section(record.name, record.artifact))
            run_id = tracker.find_run(record.artifact.fingerprint)
            page = run_page(tracker.uri, tracker.experiment_id(), run_id) if run_id else None
            if page is not None:
                parts.append(f"[The run in MLflow]({page})")
    parts.append(f"## Recipe\n\n```yaml\n{story.recipe.to_yaml()}```")
    return "\n\n".join(parts) + "\n"


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
        f"| {figure.name} | **{figure.value:.1%}** | "
        + ", ".join(f"{name} {share:.1%}" for name, share in figure.comparisons.items())
        + " |"
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
    return ["## Models\n\n" + "\n".join(lines)]


def _notes(story: Story) -> list[str]:
    if not story.notes:
        return []
    return ["## On the way\n\n" + "\n".join(f"- {note}" for note in story.notes)]
