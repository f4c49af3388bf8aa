"""What a flow run did, and its held-out figures, each beside its baselines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.artifacts import Artifact
from pipelines.config.errors import redacted
from pipelines.insight.showcase import FilledMask, Prediction
from pipelines.recipes.models import CorpusRecipe
from pipelines.registry.compare import Comparison
from pipelines.registry.promote import Promotion
from pipelines.registry.prove import Verification
from pipelines.registry.register import RegisteredModel
from pipelines.stages.evaluation.stage import beside


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of the run: its result, time and peak memory."""

    name: str
    artifact: Artifact | None  # None for a stage that makes no artifact, such as registration
    seconds: float
    peak_bytes: int  # of the run's whole process tree while the stage ran

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
    recipe: CorpusRecipe
    flow_run_url: str = ""  # empty if no server shows it
    records: list[StageRecord] = field(default_factory=list)
    failure: str = ""  # such as "failed in stage pretraining: …"; empty after success
    notes: list[str] = field(default_factory=list)  # such as "resumed from step 120"
    models: list[RegisteredModel] = field(default_factory=list)
    alias: str = ""  # that newly verified models are given
    verifications: list[Verification] = field(default_factory=list)  # made by this run
    comparisons: list[Comparison] = field(default_factory=list)  # of what this run compared
    promotions: list[Promotion] = field(default_factory=list)  # made by this run
    filled_masks: list[FilledMask] = field(default_factory=list)
    predictions: list[tuple[str, Prediction]] = field(default_factory=list)  # (expected, answer)
    seconds: float = 0.0
    peak_bytes: int = 0

    def artifact(self, stage: str) -> Artifact | None:
        """What the stage of this name made, if it ran."""
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
    """The figures of the stages that the run went through."""
    figures = []
    encoder = report.artifact("pretraining")
    if encoder is not None:
        statistics = encoder.statistics
        is_causal = "eval/clm_accuracy" in statistics
        objective, tokens = ("clm", "next tokens") if is_causal else ("mlm", "masked tokens")
        for name, metric, baseline in (
            (f"{tokens}, held-out", f"{objective}_accuracy", "most frequent token"),
            ("of these, content words", f"{objective}_accuracy/content", "most frequent of them"),
            ("perplexity of these", f"{objective}_perplexity", "token frequencies"),
            ("next sentence, held-out", "nsp_accuracy", "majority class"),
        ):
            if f"eval/{metric}" not in statistics:
                continue
            baselines = {}
            if f"baseline/{metric}" in statistics:
                baselines[baseline] = statistics[f"baseline/{metric}"]
            figures.append(
                Figure(
                    name,
                    statistics[f"eval/{metric}"],
                    baselines,
                    not metric.endswith("perplexity"),
                    _over_seeds(statistics, metric),
                )
            )
    finetuned = report.artifact("fine-tuning")
    if finetuned is not None:
        compared = report.artifact("evaluation") or finetuned
        figures.extend(_of_task(finetuned, compared, report.artifact("fine-tuning, random")))
    return figures


def _over_seeds(statistics: Mapping[str, Any], metric: str) -> str:
    """`3 seeds: 80.9% ± 0.4%`; empty for a model that is the only one."""
    deviation = statistics.get(f"deviation/eval/{metric}")
    if deviation is None:
        return ""
    mean, seeds = statistics[f"mean/eval/{metric}"], statistics["num_seeds"]
    return f"{seeds} seeds: {mean:.1%} ± {deviation:.1%}"


def _of_task(finetuned: Artifact, compared: Artifact, from_random: Artifact | None) -> list[Figure]:
    """The held-out figures of a task's model, its main score first; `compared`: baselines."""
    score = finetuned.statistics["score"]
    names = [score, *(name for name in finetuned.statistics if _is_other_share(name, score))]
    figures = []
    for name in names:
        metric = name.removeprefix("eval/")
        baselines = beside(compared.statistics, metric)
        if from_random is not None:
            # Of several the mean is compared with the mean.
            random = from_random.statistics
            baselines["same budget from random weights"] = random.get(f"mean/{name}", random[name])
        figures.append(
            Figure(
                f"{metric.replace('_', ' ')}, held-out",
                finetuned.statistics[name],
                baselines,
                over_seeds=_over_seeds(finetuned.statistics, metric),
            )
        )
    return figures


def _is_other_share(name: str, score: str) -> bool:
    return (
        name.startswith("eval/")
        and name != score
        and not name.endswith(("error", "threshold"))  # which are no shares
    )


def mlflow_page(tracking_uri: str, path: str) -> str | None:
    """A page of MLflow; None if no server shows it.

    Without the view a fresh browser opens the one for language-model applications.
    """
    if not tracking_uri.startswith("http"):
        return None
    return f"{redacted(tracking_uri).rstrip('/')}/#/{path}?workflowType=machine_learning"
