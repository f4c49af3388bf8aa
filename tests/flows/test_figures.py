"""Which figures a run is judged by."""

from pathlib import Path

import pytest

from flows.report import RunReport, StageRecord, figure_rows
from pipelines.recipes.recipe import Recipe
from pipelines.stages.figures import task_rows
from pipelines.store import ArtifactStore, Built


@pytest.mark.parametrize(("objective", "name"), [("mlm", "masked-token"), ("clm", "next-token")])
def test_an_encoder_is_judged_by_what_it_was_trained_for(
    tmp_path: Path, objective: str, name: str
) -> None:
    accuracy, perplexity = f"{objective}_accuracy", f"{objective}_perplexity"
    figures = {f"eval/{accuracy}": 0.5, f"baseline/{accuracy}": 0.1}
    figures |= {f"eval/{perplexity}": 12.3456, f"baseline/{perplexity}": 1234.5}
    encoder = ArtifactStore(tmp_path / "store").get_or_build(
        "encoder", version=1, settings={}, inputs={}, build=lambda draft: Built([], figures)
    )
    record = StageRecord("pretraining", encoder, seconds=1.0)
    assert figure_rows(RunReport("end-to-end", Recipe(), records=[record])) == [
        (f"{name} accuracy", "50.0%", "most frequent token 10.0%"),
        (f"{name} perplexity", "12.35", "token frequencies 1,234"),
    ]


def test_a_task_stands_beside_the_majority_class_tfidf_and_random_weights(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    score = {"score": "eval/accuracy"}

    def record(stage: str, **figures: float | str) -> StageRecord:
        artifact = store.get_or_build(
            "finetuned", version=1, settings={"stage": stage}, inputs={},
            build=lambda draft: Built([], {**score, **figures}),
        )  # fmt: skip
        return StageRecord(stage, artifact, seconds=1.0)

    tuned = record("fine-tuning", **{"eval/accuracy": 0.589, "baseline/accuracy": 0.11})
    random = record("fine-tuning, random", **{"eval/accuracy": 0.267})
    evaluation = record(
        "evaluation",
        **{"eval/accuracy": 0.589, "baseline/accuracy": 0.11, "baseline/TF-IDF/accuracy": 0.796},
        guess="majority class",
    )
    report = RunReport("end-to-end", Recipe(), records=[tuned, random, evaluation])
    baselines = "majority class 11.0%, TF-IDF 79.6%, same budget from random weights 26.7%"
    assert figure_rows(report) == [("accuracy", "58.9%", baselines)]
    alone = figure_rows(RunReport("end-to-end", Recipe(), records=[tuned]))
    assert alone == [("accuracy", "58.9%", "constant guess 11.0%")]


def test_what_is_no_share_is_not_in_percent() -> None:
    statistics = {"score": "eval/rank", "eval/rank": 3.25, "eval/squared_error": 0.5}
    compared = {"baseline/squared_error": 0.75, "baseline/TF-IDF/rank": 12.5}
    assert task_rows(statistics, compared) == [
        ("rank", "3.25", "TF-IDF 12.5"),
        ("squared error", "0.5", "constant guess 0.75"),
    ]
