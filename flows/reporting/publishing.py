"""A run's report in the two places that show it: the Prefect page and the terminal."""

import sys

from prefect.artifacts import create_markdown_artifact

from flows.reporting.markdown import details, next_commands, summary
from flows.reporting.pages import run_page
from flows.reporting.run_report import RunReport
from pipelines.config.errors import UserError
from pipelines.tracking.tracker import Tracker


def publish_report(report: RunReport, tracker: Tracker) -> None:
    """Leave the report with the flow run that is going on.

    A tracker that does not answer costs the links to its runs, and the report says so.
    """
    pages, trouble = _run_pages(report, tracker)
    parts = [summary(report, tracker.uri), *trouble, details(report, pages)]
    create_markdown_artifact(
        "\n\n".join(parts) + "\n",
        key=f"{report.flow}-report",
        description=f"Report on {report.recipe.name}: figures, curves and links",
    )


def print_report(report: RunReport, tracking_uri: str, *, services_run: bool = False) -> None:
    """Print what a run made, and commands to go on with; in a pipe the Markdown as it is."""
    text = "\n\n".join(
        [
            summary(report, tracking_uri),
            next_commands(report, tracking_uri, services_run=services_run),
        ]
    )
    if not sys.stdout.isatty():
        print(f"\n{text}")  # noqa: T201
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(highlight=False).print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))


def _run_pages(report: RunReport, tracker: Tracker) -> tuple[dict[str, str], list[str]]:
    """Pages of the runs that recorded artifacts, by fingerprint; a paragraph where none came.

    The tracker is asked until it fails to answer once: it may take long to fail.
    """
    found: dict[str, str] = {}
    if not tracker.answers():
        missing = f"the MLflow tracker at {tracker.shown_uri} does not answer"
        return found, [f"Links to runs in MLflow are missing: {missing}."]
    try:
        experiment_id = tracker.experiment_id()
        for record in report.records:
            fingerprint = record.artifact.fingerprint if record.artifact is not None else None
            run_id = tracker.find_run(fingerprint) if fingerprint is not None else None
            page = run_page(tracker.uri, experiment_id, run_id) if run_id else None
            if fingerprint is not None and page is not None:
                found[fingerprint] = page
    except UserError as error:
        return found, [f"Links to runs in MLflow are missing: {error}."]
    return found, []
