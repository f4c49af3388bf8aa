"""The report's section on one artifact: its counts, and a picture where there is one."""

import base64
import json

from flows.reporting.quantities import number
from pipelines.artifacts import Artifact
from pipelines.core.redaction import redacted
from pipelines.insight.pictures import draw, draw_lengths, training_panels
from pipelines.stages import stage_of_kind

_HISTORY_FILE = "history.json"
_REPORT_FILE = "report.json"


def section(name: str, artifact: Artifact) -> list[str]:
    """Paragraphs of Markdown on what the stage `name` made."""
    lines = [f"| {line[0]} | {line[1]} |" for line in counts(artifact)]
    parts = [
        f"## {name.capitalize()}",
        f"`{redacted(artifact.url)}`",
        "| count or figure | |\n|---|---|\n" + "\n".join(lines),
    ]
    if _HISTORY_FILE in artifact.names():
        history = json.loads(artifact.local(_HISTORY_FILE).read_text())
        panels = training_panels(history, artifact.statistics)
        if panels:
            parts.append(_picture(f"Curves of {name}", draw(panels)))
    if artifact.kind == "corpus":
        lengths = artifact.statistics["train"]["documents_by_words"]
        parts.append(_picture("Documents by their length", draw_lengths(lengths)))
        parts.append(_samples(artifact.statistics["train"]["samples"]))
    if _REPORT_FILE in artifact.names():
        report = json.loads(artifact.local(_REPORT_FILE).read_text())
        if "by_label" in report:
            parts.append(_labels(report["by_label"]))
    return parts


def headline(artifact: Artifact) -> str:
    """The one count or figure that says most of an artifact, for a line on the screen."""
    return stage_of_kind(artifact.kind).headline(artifact.statistics)


def counts(artifact: Artifact) -> list[tuple[str, str]]:
    """Names and values of the plain numbers among an artifact's statistics, two levels deep."""
    numbers: list[tuple[str, str]] = []
    for name, value in artifact.statistics.items():
        if isinstance(value, dict):
            numbers.extend(
                (f"{name}: {key}", number(v)) for key, v in value.items() if _is_number(v)
            )
        elif _is_number(value):
            numbers.append((name, number(value)))
    return numbers


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _picture(title: str, png: bytes) -> str:
    """An image inside the text: the Prefect page shows it, and no server has to serve it."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _samples(samples: list[list[str]]) -> str:
    """Beginnings of documents drawn at random, for a person to see what was read."""
    lines = [f"- {_literal(source)}: {_literal(begin)}" for _, source, begin in samples]
    return "\n".join(["Documents drawn at random begin:", "", *lines])


def _literal(text: str) -> str:
    """Text of others, as code in one line, so that nothing in it is markup."""
    one_line = " ".join(text.split()).replace("`", "'")
    return f"`{one_line}`"


def _labels(by_label: list[dict[str, float | str]]) -> str:
    rows = "\n".join(
        f"| {row['label']} | {row['precision']:.1%} | {row['recall']:.1%} | {row['f1']:.1%} "
        f"| {row['items']} |"
        for row in by_label
    )
    return f"| label | precision | recall | F1 | items |\n|---|---|---|---|---|\n{rows}"
