"""A run's report as Markdown: the text for terminal and Prefect page, and the page's details."""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence

from flows.reporting.progress_line import duration, memory, number
from flows.reporting.run_report import RunReport, figures_of, mlflow_page
from pipelines.artifacts import Artifact
from pipelines.config.errors import redacted
from pipelines.stages import STAGES
from pipelines.tasks import family_title

_ASKED = {
    "encoder": "fill-mask 'This is a [MASK].'",
    "question_answering": "predict 'Who?' 'Some text.'",
    "multiple_choice": "predict 'Some text' 'one end' 'another'",
}
_LINE = 110  # longer texts are cut
_HISTORY_FILE, _REPORT_FILE = "history.json", "report.json"


def summary(report: RunReport, tracking_uri: str) -> str:
    """What the run built and how good it is; `tracking_uri` is its tracker."""
    sections = {
        "Stages": _stages(report),
        "Held-out results": _figures(report),
        "Masked words in unseen sentences": _filled_masks(report),
        "Labels of unseen texts": _predictions(report),
        "Models": _models(report, tracking_uri),
        "Notes": [f"- {note}" for note in report.notes],
    }
    title = (
        f"# {report.recipe.name}: {duration(report.seconds)}, "
        f"at most {memory(report.peak_bytes)} of memory"
    )
    failure = [f"**The run {report.failure}**"] if report.failure else []
    parts = [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items() if lines]
    return "\n\n".join([title, *failure, *parts])


def next_commands(report: RunReport, tracking_uri: str, *, services_run: bool) -> str:
    """A section of commands to try next; `services_run`: the home's servers are running."""
    named = report.recipe.runtime.home  # without it the commands find the home as this run did
    home = f" --home {shlex.quote(named)}" if named else ""
    commands = []
    for model in report.models:
        asked = _ASKED.get(model.kind, "predict 'Some text.'")
        commands.append((f"bertsmith {asked} --model {model.name}", ""))
    if services_run:
        commands.append(("bertsmith down", "stop the servers"))
    elif not tracking_uri.startswith("http"):
        commands.append(("bertsmith up", "start the web pages of Prefect and MLflow"))
    commands.append(("bertsmith run --corpus 'my/texts/*.txt'", "the same for your own text"))
    lines = [
        f"    {command + home:<71} # {what}" if what else f"    {command}{home}"
        for command, what in commands
    ]
    page = [f"\nThis run's page: {report.flow_run_url}"] if report.flow_run_url else []
    return "\n".join(["## Next\n", *lines, *page])


def details(report: RunReport, run_pages: Mapping[str, str]) -> str:
    """A section for each artifact, with pictures inside the text, and the recipe.

    `run_pages` are those of MLflow by the fingerprint of what the runs made.
    """
    parts = []
    for record in report.records:
        if record.artifact is not None:
            parts.extend(_section(record.name, record.artifact))
            page = run_pages.get(record.artifact.fingerprint)
            if page is not None:
                parts.append(f"[The run in MLflow]({page})")
    parts.append(f"## Recipe\n\n```yaml\n{report.recipe.to_yaml()}```")
    return "\n\n".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """An aligned table; empty without rows."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return [
        "| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]


def _stages(report: RunReport) -> list[str]:
    rows = [
        (
            record.name,
            record.outcome,
            duration(record.seconds),
            memory(record.peak_bytes),
            _headline(record.artifact) if record.artifact is not None else "",
        )
        for record in report.records
    ]
    store = redacted(report.recipe.runtime.store_url())
    return [*_table(("stage", "outcome", "time", "memory", "result"), rows), "", f"Store: {store}"]


def _figures(report: RunReport) -> list[str]:
    rows = [(each.name, each.shown(), each.baselines_shown()) for each in figures_of(report)]
    return _table(("figure", "reached", "baselines"), rows)


def _filled_masks(report: RunReport) -> list[str]:
    return [
        f"- {_literal(filled.text)}\n  - was {_literal(filled.hidden)}, predicted: "
        + ", ".join(f"{_literal(c.token)} {c.probability:.0%}" for c in filled.candidates)
        for filled in report.filled_masks
    ]


def _predictions(report: RunReport) -> list[str]:
    return [
        f"- {_literal(answer.text)}\n  - label {_literal(expected)}, predicted: "
        f"{_literal(answer.label or '')} {answer.probability:.0%}"
        for expected, answer in report.predictions
    ]


def _models(report: RunReport, tracking_uri: str) -> list[str]:
    promoted = {(move.name, move.version): move.alias for move in report.promotions}
    lines = []
    for model in report.models:
        page = mlflow_page(tracking_uri, f"models/{model.name}/versions/{model.version}")
        alias = promoted.get((model.name, model.version))
        name = f"[{model.uri}]({page})" if page else model.uri
        now = f"now models:/{model.name}@{alias}" if alias else "its aliases are as before"
        lines.append(f"- {family_title(model.kind)}: {name}, {now}")
    lines += [
        f"- {proof.model.uri}, loaded in a fresh process, reproduced its held-out score "
        f"({proof.comparison})"
        for proof in report.verifications
    ]
    return lines + [
        f"- models:/{comparison.name}/{comparison.version}: {comparison.reason}"
        for comparison in report.comparisons
    ]


def _section(name: str, artifact: Artifact) -> list[str]:
    """Paragraphs on what the stage `name` made: counts and, if this run built it, pictures.

    The page of the run that built what is reused has them.
    """
    counts = "\n".join(_table(("count or figure", ""), _counts(artifact)))
    parts = [f"## {name.capitalize()}", f"`{redacted(artifact.url)}`", counts]
    if artifact.reused:
        return parts
    from pipelines.insight.pictures import draw, draw_lengths, training_panels  # matplotlib

    if _HISTORY_FILE in artifact.names():
        history = json.loads(artifact.local(_HISTORY_FILE).read_text())
        panels = training_panels(history, artifact.statistics)
        if panels:
            parts.append(_picture(f"Curves of {name}", draw(panels)))
    if artifact.kind == "corpus":
        train = artifact.statistics["train"]
        lengths = draw_lengths(train["documents_by_words"])
        parts.append(_picture("Documents by their length", lengths))
        samples = [
            f"- {_literal(source, cut=False)}: {_literal(begin, cut=False)}"
            for _, source, begin in train["samples"]
        ]
        parts.append("\n".join(["Beginnings of documents drawn at random:", "", *samples]))
    if _REPORT_FILE in artifact.names():
        by_label = json.loads(artifact.local(_REPORT_FILE).read_text()).get("by_label", ())
        rows = [
            (
                _literal(row["label"]).replace("|", "\\|"),
                *(f"{row[score]:.1%}" for score in ("precision", "recall", "f1")),
                f"{row['items']}",
            )
            for row in by_label
        ]  # fmt: skip
        parts.append("\n".join(_table(("label", "precision", "recall", "F1", "items"), rows)))
    return [part for part in parts if part]


def _headline(artifact: Artifact) -> str:
    """An artifact's most important figure."""
    return STAGES[artifact.kind].headline(artifact.statistics)


def _counts(artifact: Artifact) -> list[tuple[str, str]]:
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
    """An image inside the text, so that no server has to serve it."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _literal(text: str, *, cut: bool = True) -> str:
    """Text of others as code in one line, so that it cannot be markup."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line if len(line) <= _LINE or not cut else line[: _LINE - 1] + '…'}`"
