"""The whole chain in local mode, with real components: flows, Ray, MLflow, store."""

import re
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)

from flows.end_to_end import end_to_end
from flows.report import RunReport, print_report
from pipelines.recipes.files import read_recipe
from pipelines.stage import open_tracker
from tests.flows.conftest import WholeRun

STAGES = (
    "corpus", "vocabulary", "examples", "pretraining", "dataset", "fine-tuning",
    "fine-tuning, random", "evaluation",
)  # fmt: skip


def outcomes(report: RunReport) -> dict[str, str]:
    return {record.name: record.outcome for record in report.records if record.artifact is not None}


def artifacts_of_run(report: RunReport) -> dict[str, Any]:
    """What the flow run left on its Prefect page, by key."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id(report)]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=of_run)
    return {artifact.key: artifact for artifact in found}


def run_id(report: RunReport) -> str:
    return report.flow_run_url.rpartition("/")[2]


def test_every_stage_is_built_once(whole_run: WholeRun) -> None:
    report = whole_run.report
    assert outcomes(report) == dict.fromkeys(STAGES, "built")
    assert report.seconds >= sum(record.seconds for record in report.records)


def test_both_models_are_registered_proved_and_compared(whole_run: WholeRun) -> None:
    from pipelines.registry.find import list_models

    report = whole_run.report
    tracker = open_tracker(report.recipe.runtime)
    rows = {row.kind: row for row in list_models(tracker)}
    assert set(rows) == {"encoder", "classification"}
    assert {comparison.name for comparison in report.comparisons} == {
        row.name for row in rows.values()
    }
    for comparison in report.comparisons:
        assert comparison.difference is not None, comparison.reason
        (row,) = (row for row in rows.values() if row.name == comparison.name)
        assert row.is_verified
        assert row.comparison == comparison.reason
        assert ("champion" in row.aliases) is comparison.is_better
        assert "candidate" in row.aliases
    assert [proof.comparison for proof in whole_run.report.verifications] == ["exact", "exact"]


def test_the_tracker_shows_one_run_with_a_child_for_each_training(whole_run: WholeRun) -> None:
    report = whole_run.report
    tracker = open_tracker(report.recipe.runtime)
    runs = tracker.client().search_runs([tracker.experiment_id()])
    of_flow = [run for run in runs if run.data.tags.get("bertsmith.flow_run") == run_id(report)]
    (parent,) = (run for run in of_flow if "mlflow.parentRunId" not in run.data.tags)
    children = [run for run in of_flow if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.data.tags["bertsmith.stage"] for run in children} == {
        "pretraining", "finetuning-pretrained", "finetuning-random",
    }  # fmt: skip
    assert {run.info.status for run in of_flow} == {"FINISHED"}
    assert parent.data.params["pretraining.num_steps"] == "30"
    assert (
        f"[The flow run in Prefect]({report.flow_run_url})"
        in parent.data.tags["mlflow.note.content"]
    )


def test_the_run_leaves_progress_and_a_report(whole_run: WholeRun) -> None:
    left = artifacts_of_run(whole_run.report)
    assert {"end-to-end-progress", "end-to-end-report"} <= set(left)
    assert "| fine-tuning, random " in left["end-to-end-report"].data
    progress = left["end-to-end-progress"]
    assert progress.data == 100.0
    assert progress.description.startswith("finetuning from random weights")


def test_progress_reaches_the_log_of_the_run(whole_run: WholeRun) -> None:
    of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id(whole_run.report)]))
    with get_client(sync_client=True) as client:
        logs = client.read_logs(of_run, limit=200)
    messages = [log.message for log in logs]
    assert any(re.match(r"pretraining +· 100% · 30/30 steps", text) for text in messages)


def test_the_screen_shows_the_report_without_control_characters_in_a_pipe(
    whole_run: WholeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(whole_run.report)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    for words in (
        "# small:", "built", "masked-token accuracy", "most frequent token", ", predicted: ",
        "models:/bertsmith-encoder/1, not promoted\n",
        f"bertsmith models --home '{whole_run.home}'",
        "not better than the token-frequency baseline", "majority class ",
        "TF-IDF of characters ", "same budget from random weights ",
    ):  # fmt: skip
        assert words in said
    assert said.count("  - was `") == 8


def test_a_second_run_builds_nothing_registers_nothing_new_and_moves_no_alias(
    whole_run: WholeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    client = open_tracker(whole_run.report.recipe.runtime).client()
    client.delete_registered_model_alias("bertsmith-encoder", "candidate")  # a person's doing
    recipe = read_recipe(str(whole_run.recipe), [f"runtime.home={whole_run.home}"])
    try:
        report = end_to_end(recipe)
        assert not client.get_registered_model("bertsmith-encoder").aliases
    finally:
        client.set_registered_model_alias("bertsmith-encoder", "candidate", "1")
    assert outcomes(report) == dict.fromkeys(STAGES, "reused")
    assert [model.version for model in report.models] == [1, 1]
    assert not [record for record in report.records if record.name.startswith("verification")]
    assert report.promotions == []
    assert len(report.filled_masks) == 8  # of the run's own version, whatever the aliases say
    print_report(report)
    line = "models:/bertsmith-encoder/1, registered before, not promoted in this run\n"
    assert line in capsys.readouterr().out


def test_another_mask_rate_rebuilds_the_examples_alone(whole_run: WholeRun) -> None:
    recipe = read_recipe(
        str(whole_run.recipe),
        [f"runtime.home={whole_run.home}", "examples.mask_fraction=0.2"],
    )
    assert outcomes(end_to_end(recipe, "examples")) == {
        "corpus": "reused",
        "vocabulary": "reused",
        "examples": "built",
    }


def test_the_registered_models_answer_on_the_command_line(
    whole_run: WholeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.cli.app import DONE, run

    home = ["--home", str(whole_run.home)]
    assert run(["predict", "Return the shortest path between two nodes.", *home]) == DONE
    assert capsys.readouterr().out.split()[0] in ("networkx", "numpy")
    assert run(["fill-mask", "Return the [MASK] of the array.", "--top", "3", *home]) == DONE
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert run(["models", *home]) == DONE
    listed = capsys.readouterr().out
    assert "bertsmith-classifier" in listed
    assert "@candidate" in listed
    assert run(["models", "bertsmith-classifier/1", *home]) == DONE
    shown = capsys.readouterr().out
    for words in (
        "models:/bertsmith-classifier/1  @candidate\nclassification, registered 20",
        "| accuracy ", "\nverified: a fresh process reproduced its held-out accuracy ",
        "\nmade from\n  fine-tuning ", "see above\n",
    ):  # fmt: skip
        assert words in shown


def test_a_registered_classifier_is_evaluated_on_a_labelled_file(
    whole_run: WholeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.cli.app import DONE, MISTAKE, run

    dataset = tmp_path / "labelled.csv"
    dataset.write_text(
        "text,label\nReturn the sum of the array.,numpy\nReturn the nodes.,networkx\n"
    )
    command = ["evaluate", "--model", "bertsmith-classifier/1", "--home", str(whole_run.home)]
    assert run([*command, "--labels", str(dataset)]) == DONE
    said = capsys.readouterr().out
    assert "| accuracy" in said and "TF-IDF" in said and "2 items" in said
    assert "| networkx | " in said
    assert run([*command, "--labels", str(dataset), "--label-column", "genre"]) == MISTAKE
    assert "genre" in capsys.readouterr().err
    dataset.write_bytes("text;label\nReturn the “sum”.;numpy\n".encode("cp1252"))
    reading = ["--set", "dataset.source.encoding=cp1252", "--set", "dataset.source.delimiter=;"]
    assert run([*command, "--labels", str(dataset)]) == MISTAKE
    assert run([*command, "--labels", str(dataset), *reading]) == DONE
    assert run([*command, "--labels", str(dataset), "--set", "finetuning.seed=1"]) == MISTAKE
    assert "does not say how --labels is read" in capsys.readouterr().err
    other = f"dataset.source.path={whole_run.home}"  # `--labels` names the file
    assert run([*command, "--labels", str(dataset), *reading, "--set", other]) == MISTAKE
    assert "an option says that already" in capsys.readouterr().err


def test_a_version_is_promoted_under_another_alias(whole_run: WholeRun) -> None:
    from flows.promote import PromotionRecipe, promote
    from pipelines.settings import RuntimeSettings

    runtime = RuntimeSettings(home=str(whole_run.home))
    promotion = promote(
        PromotionRecipe(runtime=runtime, name="bertsmith-encoder", source="1", alias="blessed")
    )
    assert (promotion.version, promotion.previous_version) == (1, None)
