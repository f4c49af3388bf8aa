"""What a flow run did, as one Markdown report for the terminal and Prefect's page."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.progress import duration
from pipelines.errors import redacted
from pipelines.recipes.recipe import Recipe
from pipelines.registry.compare import Comparison
from pipelines.registry.promote import Promotion
from pipelines.registry.prove import Verification
from pipelines.registry.register import RegisteredModel
from pipelines.show import FilledMask
from pipelines.stages import FINETUNING, STAGES
from pipelines.stages.evaluation import beside
from pipelines.store import Artifact
from pipelines.tasks import family_title

RANDOM_TWIN = f"{FINETUNING.title}, random"
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


@dataclass(frozen=True, slots=True)
class Figure:
    """A held-out figure and its baselines."""

    name: str
    value: float
    baselines: dict[str, float]  # by name
    is_share: bool = True  # between 0 and 1
    over_seeds: str = ""  # mean and deviation, if it is the best of several

    def shown(self) -> str:
        """`81.2%`, and mean and deviation over seeds if there are several."""
        seeds = f" ({self.over_seeds})" if self.over_seeds else ""
        return f"{self._number(self.value)}{seeds}"

    def baselines_shown(self) -> str:
        """`majority class 12.0%, TF-IDF 61.3%`."""
        return ", ".join(f"{name} {self._number(value)}" for name, value in self.baselines.items())

    def _number(self, value: float) -> str:
        return f"{value:.1%}" if self.is_share else f"{value:,.4g}"


def figures_of(report: RunReport) -> list[Figure]:
    """The held-out figures of the encoder and of the task's model, with their baselines."""
    figures = []
    encoder = report.artifact("pretraining")
    if encoder is not None:
        figures.extend(_of_encoder(encoder.statistics))
    finetuned = report.artifact(FINETUNING.title)
    if finetuned is not None:
        compared = report.artifact("evaluation") or finetuned
        figures.extend(_of_task(finetuned, compared, report.artifact(RANDOM_TWIN)))
    return figures


def _of_encoder(statistics: Mapping[str, Any]) -> list[Figure]:
    is_causal = "eval/clm_accuracy" in statistics
    objective, tokens = ("clm", "next tokens") if is_causal else ("mlm", "masked tokens")
    named = (
        (f"{tokens}, held-out", f"{objective}_accuracy", "most frequent token"),
        ("of these, content words", f"{objective}_accuracy/content", "most frequent of them"),
        ("perplexity of these", f"{objective}_perplexity", "token frequencies"),
        ("next sentence, held-out", "nsp_accuracy", "majority class"),
    )
    figures = []
    for name, metric, guess in named:
        if f"eval/{metric}" not in statistics:
            continue
        baseline = statistics.get(f"baseline/{metric}")
        baselines = {} if baseline is None else {guess: baseline}
        is_share = not metric.endswith("perplexity")
        figures.append(Figure(name, statistics[f"eval/{metric}"], baselines, is_share))
    return figures


def _of_task(finetuned: Artifact, compared: Artifact, from_random: Artifact | None) -> list[Figure]:
    """The held-out figures of a task's model, its main score first; `compared`: baselines."""
    statistics, score = finetuned.statistics, finetuned.statistics["score"]
    others = [
        name
        for name in statistics
        if name.startswith("eval/")
        and name != score
        and not name.endswith("error")  # which are no shares
    ]
    figures = []
    for name in (score, *others):
        metric = name.removeprefix("eval/")
        baselines = beside(compared.statistics, metric)
        if from_random is not None:
            # Of several the mean is compared with the mean.
            random = from_random.statistics
            baselines["same budget from random weights"] = random.get(f"mean/{name}", random[name])
        seeds = ""
        if (deviation := statistics.get(f"deviation/{name}")) is not None:
            mean, count = statistics[f"mean/{name}"], statistics["num_seeds"]
            seeds = f"{count} seeds: {mean:.1%} ± {deviation:.1%}"
        title = f"{metric.replace('_', ' ')}, held-out"
        figures.append(Figure(title, statistics[name], baselines, over_seeds=seeds))
    return figures


def markdown(report: RunReport, mlflow_page: str = "") -> str:
    """The report: stages, figures, examples, models, notes; `mlflow_page` is that of the run."""
    figures = [(each.name, each.shown(), each.baselines_shown()) for each in figures_of(report)]
    sections = {
        "Stages": _stages(report),
        "Held-out results": _table(("figure", "reached", "baselines"), figures),
        "Masked words in unseen sentences": _filled_masks(report),
        "Models": _models(report),
        "Notes": [f"- {note}" for note in report.notes],
    }
    parts = [f"# {report.recipe.name}: {duration(report.seconds)}"]
    if report.failure:
        parts.append(f"**The run {report.failure}**")
    parts += [f"## {name}\n\n" + "\n".join(lines) for name, lines in sections.items() if lines]
    if mlflow_page:
        parts.append(f"The run in MLflow: <{mlflow_page}>")
    return "\n\n".join(parts)


def print_report(report: RunReport) -> None:
    """Print the report and commands to try next; in a pipe as plain Markdown."""
    text = "\n\n".join([markdown(report), "## Next", *_next_commands(report)])
    if not sys.stdout.isatty():
        print(f"\n{text}")  # noqa: T201
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(highlight=False).print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))


def _next_commands(report: RunReport) -> Iterator[str]:
    for model in report.models:
        question = "fill-mask 'This is a [MASK].'" if model.kind == "encoder" else "predict"
        yield f"    bertsmith {question} --model {model.name}"
    yield "    bertsmith models"
    yield f"This run's page: {report.flow_run_url}" if report.flow_run_url else "    bertsmith up"


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
    rows = []
    for record in report.records:
        made = record.artifact
        headline = ""
        if made is not None and made.kind in STAGES:  # an imported model is of no stage
            headline = STAGES[made.kind].headline(made.statistics)
        rows.append((record.name, record.outcome, duration(record.seconds), headline))
    store = redacted(report.recipe.runtime.store_url())
    return [*_table(("stage", "outcome", "time", "result"), rows), "", f"Store: {store}"]


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
        now = f"now models:/{model.name}@{alias}" if alias else "its aliases are as before"
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
