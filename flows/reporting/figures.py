"""The numbers that a run is judged by, each beside what it has to beat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.reporting.story import Story
from pipelines.artifacts import Artifact
from pipelines.stages.evaluation.baselines import beside


@dataclass(frozen=True, slots=True)
class Figure:
    """A held-out figure and what it has to beat: shares between 0 and 1, unless it says other."""

    name: str
    value: float
    comparisons: dict[str, float]  # what it has to beat, by name
    is_share: bool = True
    over_seeds: str = ""  # mean and deviation, where it is the best of several

    def sentence(self) -> str:
        """`81.2%   (majority 12.0%)`."""
        told = self.told(self.value) + (f"   ({self.beside()})" if self.comparisons else "")
        return f"{told}   {self.over_seeds}" if self.over_seeds else told

    def beside(self) -> str:
        """`majority 12.0%`, for everything that it has to beat."""
        return ", ".join(f"{name} {self.told(value)}" for name, value in self.comparisons.items())

    def told(self, value: float) -> str:
        """A value as people read it: `81.2%`, or a number of four digits."""
        return f"{value:.1%}" if self.is_share else f"{value:,.4g}"


def figures_of(story: Story) -> list[Figure]:
    """The figures of the stages that the run went through."""
    figures = []
    encoder = story.artifact("pretraining")
    if encoder is not None:
        name, metric = ("masked tokens, held-out", "mlm_accuracy")
        if "eval/clm_accuracy" in encoder.statistics:
            name, metric = ("next tokens, held-out", "clm_accuracy")
        figures.append(_figure(name, encoder, metric, "most frequent token"))
        if f"eval/{metric}/content" in encoder.statistics:
            figures.append(
                _figure(
                    "content words of these", encoder, f"{metric}/content", "most frequent of them"
                )
            )
        perplexity = metric.replace("accuracy", "perplexity")
        if f"eval/{perplexity}" in encoder.statistics:
            figures.append(
                _figure(
                    "perplexity of these", encoder, perplexity, "token frequencies", is_share=False
                )
            )
        if "eval/nsp_accuracy" in encoder.statistics:
            figures.append(_figure("next sentence, held-out", encoder, "nsp_accuracy", "majority"))
    finetuned = story.artifact("fine-tuning")
    if finetuned is not None:
        compared = story.artifact("evaluation") or finetuned
        figures.extend(_of_task(finetuned, compared, story.artifact("fine-tuning, random")))
    return figures


def _figure(
    name: str, artifact: Artifact, metric: str, baseline: str, *, is_share: bool = True
) -> Figure:
    statistics = artifact.statistics
    comparisons = {}
    if f"baseline/{metric}" in statistics:
        comparisons[baseline] = statistics[f"baseline/{metric}"]
    return Figure(
        name, statistics[f"eval/{metric}"], comparisons, is_share, _over_seeds(statistics, metric)
    )


def _over_seeds(statistics: Mapping[str, Any], metric: str) -> str:
    """`3 seeds: 80.9% ± 0.4%`; empty for a model that is the only one."""
    deviation = statistics.get(f"deviation/eval/{metric}")
    if deviation is None:
        return ""
    mean, seeds = statistics[f"mean/eval/{metric}"], statistics["num_seeds"]
    return f"{seeds} seeds: {mean:.1%} ± {deviation:.1%}"


def _of_task(finetuned: Artifact, compared: Artifact, from_random: Artifact | None) -> list[Figure]:
    """The held-out figures of a task's model, its family's main score first.

    `compared` has the figures of what it is compared with.
    """
    score = finetuned.statistics["score"]
    names = [score, *(name for name in finetuned.statistics if _is_other_share(name, score))]
    figures = []
    for name in names:
        metric = name.removeprefix("eval/")
        figure = Figure(
            f"{metric.replace('_', ' ')}, held-out",
            finetuned.statistics[name],
            beside(compared.statistics, metric),
            over_seeds=_over_seeds(finetuned.statistics, metric),
        )
        if from_random is not None:
            # Of several the mean is compared with the mean.
            its = from_random.statistics
            figure.comparisons["same budget from random weights"] = its.get(
                f"mean/{name}", its[name]
            )
        figures.append(figure)
    return figures


def _is_other_share(name: str, score: str) -> bool:
    return (
        name.startswith("eval/")
        and name != score
        and not name.endswith(("error", "threshold"))  # which are no shares
    )
