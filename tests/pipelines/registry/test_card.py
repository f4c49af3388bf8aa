"""What a person reads of a version in MLflow: its card, its recipe, its files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.registry.register import model_card, register
from pipelines.show import log_evidence
from pipelines.store import Artifact
from tests.pipelines.registry.classifiers import finetuned, labelled_texts
from tests.pipelines.registry.conftest import Models


def test_a_card_says_what_it_is_from_what_how_good_and_how_it_is_asked(models: Models) -> None:
    artifact = models.trained(1)
    models.register(artifact)
    card = models.tracker.client().get_model_version("encoder", "1").description
    for words in (
        "A BERT encoder pretrained from raw text", "## Made from", models.examples.fingerprint,
        "## Held-out figures", f"{artifact.statistics['eval/mlm_accuracy']:.1%}",
        f"most frequent token {artifact.statistics['baseline/mlm_accuracy']:.1%}", "## Limits",
        'mlflow.pyfunc.load_model("models:/encoder/1")',
    ):  # fmt: skip
        assert words in card
    assert len(card) <= 5_000


def test_a_card_of_the_best_of_several_seeds_tells_their_spread(models: Models) -> None:
    artifact = models.trained(1)
    told = {
        "score": "eval/mlm_loss", "mean/eval/mlm_loss": 6.25, "deviation/eval/mlm_loss": 0.125,
        "num_seeds": 3,
    }  # fmt: skip
    statistics = {**artifact.statistics, **told}
    manifest = artifact.manifest.model_copy(update={"statistics": statistics})
    card = model_card(models.submission(replace(artifact, manifest=manifest)), 1)
    assert "The best of 3 seeds, from 1 on" in card
    assert "eval/mlm_loss is 6.2500 in the mean with a standard deviation of 0.1250." in card
    assert "Trained once" in model_card(models.submission(artifact), 1)


def test_the_run_of_a_version_has_the_whole_recipe_as_dotted_parameters(models: Models) -> None:
    artifact = models.trained(1)
    recipe = "name: small\nplace: {home: /somewhere}\npretraining: {num_steps: 30, betas: [1, 2]}\n"
    submission = models.submission(artifact, recipe_yaml=recipe)
    model = register(submission, models.tracker)
    params = models.tracker.client().get_run(model.run_id).data.params
    assert params["pretraining.num_steps"] == "30"
    assert params["pretraining.betas"] == "[1, 2]"
    assert not [name for name in params if name.startswith("runtime")]
    # A second name from another recipe: MLflow's parameters never change.
    other = models.submission(artifact, "other", recipe_yaml=recipe.replace("30", "60"))
    register(other, models.tracker)
    assert models.tracker.client().get_run(model.run_id).data.params == params


@pytest.fixture
def evaluation(models: Models, tmp_path: Path) -> tuple[Artifact, Artifact]:
    from pipelines.stages.evaluation import build_evaluation

    dataset = labelled_texts(models, tmp_path, size=120)
    model = finetuned(models, dataset, 0)
    return model, build_evaluation(model, dataset, models.context)


def test_the_evidence_lies_with_the_run(
    models: Models, evaluation: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    model, report = evaluation
    run_id = models.tracker.create_run("finetuning", model.fingerprint, {}, {})
    names = log_evidence(models.tracker, run_id, model, report)
    assert names == ["confusion.png", "reliability.png", "report.json"]
    folder = Path(models.tracker.client().download_artifacts(run_id, "", str(tmp_path)))
    told = json.loads((folder / "report.json").read_text())
    assert [row["label"] for row in told["by_label"]] == told["labels"] == ["no", "yes"]
    assert (folder / "confusion.png").read_bytes().startswith(b"\x89PNG")
