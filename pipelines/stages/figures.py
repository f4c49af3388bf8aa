"""A model's figures as people read them: each beside its baselines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

BASELINE: Final = "baseline/"
HEADER: Final = ("figure", "value", "compared with")
Row = tuple[str, str, str]  # a figure's name, its value, and what to compare it with


def encoder_rows(statistics: Mapping[str, Any]) -> list[Row]:
    """The figures of a pretrained encoder; none of one that was not pretrained here."""
    is_causal = "eval/clm_accuracy" in statistics
    objective, tokens = ("clm", "next-token") if is_causal else ("mlm", "masked-token")
    rows = []
    for title, metric, guess in (
        (f"{tokens} accuracy", f"{objective}_accuracy", "most frequent token"),
        (
            f"{tokens} accuracy, content words",
            f"{objective}_accuracy/content",
            "most frequent of them",
        ),
        (f"{tokens} perplexity", f"{objective}_perplexity", "token frequencies"),
        ("next-sentence accuracy", "nsp_accuracy", "majority class"),
    ):
        style = ",.4g" if metric.endswith("perplexity") else ".1%"
        if f"eval/{metric}" in statistics:
            value, baseline = statistics[f"eval/{metric}"], statistics.get(f"{BASELINE}{metric}")
            beside_it = "" if baseline is None else f"{guess} {baseline:{style}}"
            rows.append((title, f"{value:{style}}", beside_it))
    return rows


def task_rows(
    statistics: Mapping[str, Any],
    compared: Mapping[str, Any],
    from_random: Mapping[str, Any] | None = None,
) -> list[Row]:
    """The figures of a fine-tuned model, its main score first.

    `compared` holds the baselines, `from_random` the statistics of the same fine-tuning from random
    weights.
    """
    score, rows = statistics["score"], []
    names = [name for name in statistics if name.startswith("eval/")]
    for name in sorted(names, key=lambda name: name != score):
        metric = name.removeprefix("eval/")
        style = style_of(metric, statistics[name])
        baselines = beside(compared, metric)
        if from_random is not None:
            # Of several the mean is compared with the mean.
            baselines["same budget from random weights"] = from_random.get(
                f"mean/{name}", from_random[name]
            )
        shown = f"{statistics[name]:{style}}"
        if (deviation := statistics.get(f"deviation/{name}")) is not None:
            mean, count = statistics[f"mean/{name}"], statistics["num_seeds"]
            shown = f"{shown} ({count} seeds: {mean:{style}} ± {deviation:{style}})"
        others = ", ".join(f"{key} {baselines[key]:{style}}" for key in baselines)
        rows.append((metric.replace("_", " "), shown, others))
    return rows


def style_of(metric: str, value: float) -> str:
    """How a score is written: a share in percent; a task of one's own may count anything."""
    return ".4g" if metric.endswith("error") or abs(value) > 1 else ".1%"


def beside(statistics: Mapping[str, Any], metric: str) -> dict[str, float]:
    """The baselines to compare a figure with, by name: trivial and learned ones."""
    guess = statistics.get("guess", "constant guess")
    trivial = statistics.get(f"{BASELINE}{metric}")
    learned = {
        key.removeprefix(BASELINE).removesuffix(f"/{metric}"): value
        for key, value in statistics.items()
        if key.startswith(BASELINE) and key.endswith(f"/{metric}") and key.count("/") == 2
    }
    learned = dict(sorted(learned.items()))
    return learned if trivial is None else {guess: trivial, **learned}


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table whose columns are equally wide; none without rows."""
    if not rows:
        return
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for line in (header, ["-" * width for width in widths], *rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        yield f"| {' | '.join(cells)} |"
