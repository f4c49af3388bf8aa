"""A model that has to be fetched: there while it is used, gone afterwards."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from bert_core.training.state import load_model
from flows.cli.app import DONE, run
from flows.cli.options import asked_model
from pipelines.errors import UserError
from pipelines.predict.batch_prediction import BatchSettings, build_predictions
from pipelines.predict.model_evaluation import evaluate_file
from pipelines.registry.find import VERIFIED_TAG
from pipelines.registry.package import (
    local_model,
    located,
    open_model,
    resolved_encoder,
    versioned,
)
from pipelines.stages.dataset.settings import LabelledFile
from tests.integration.object_stores import BUCKET, s3_server
from tests.pipelines.registry.classifiers import choose
from tests.pipelines.registry.conftest import Models, package_of


def test_a_fetched_model_is_removed_after_its_use(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.tracker = replace(models.tracker, artifact_location=f"s3://{BUCKET}/mlflow")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with s3_server(monkeypatch):
        models.register(models.encoder(1))
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        with located(models.tracker, "encoder@candidate") as folder:
            assert folder.is_relative_to(scratch)
            assert load_model(folder).head_name == "pretraining"
        model, tokenizer = open_model(models.tracker, "models:/encoder/1")
    assert model.config.vocab_size == tokenizer.vocab_size
    assert list(scratch.iterdir()) == []


def test_a_folder_of_the_same_name_is_never_a_registered_model(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.register(models.encoder(1))
    with located(models.tracker, "encoder/1") as folder:
        shutil.copytree(folder, tmp_path / "here" / "encoder" / "1")
    monkeypatch.chdir(tmp_path / "here")
    context = models.context
    assert local_model("models:/encoder/1", context) == "models:/encoder/1"
    with located(models.tracker, "models:/encoder/1") as folder:
        assert folder.is_relative_to(tmp_path / "files")
    with located(models.tracker, "encoder/1") as folder:  # a folder goes before a bare name
        assert folder == Path("encoder/1")


@pytest.fixture
def shadowed(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Models:
    """A verified version encoder/1, and in the current directory a folder of that name."""
    models.register(models.encoder(1))
    models.tracker.client().set_model_version_tag("encoder", "1", VERIFIED_TAG, "true")
    (tmp_path / "here" / "encoder" / "1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    return models


@pytest.mark.parametrize("asked", [None, "encoder@candidate", "models:/encoder/1"])
def test_no_folder_is_opened_in_place_of_the_version_that_a_command_resolves(
    shadowed: Models, tmp_path: Path, asked: str | None
) -> None:
    with asked_model(asked, None, "encoder") as (folder, called):
        assert folder.is_relative_to(tmp_path / "files")
    assert called == "models:/encoder/1"


def test_no_folder_is_exported_evaluated_or_asked_in_place_of_a_version(
    shadowed: Models, tmp_path: Path
) -> None:
    assert versioned(shadowed.tracker, "encoder@candidate") == "models:/encoder/1"
    assert run(["export", "encoder@candidate", "--to", str(tmp_path / "out")]) == DONE
    (tmp_path / "a.txt").write_text("a line\n")
    settings = BatchSettings(model="encoder@candidate", files=(str(tmp_path / "a.txt"),))
    assert build_predictions(settings, shadowed.tracker, shadowed.context).statistics["rows"] == 1
    source = LabelledFile(path=str(tmp_path / "a.csv"))
    with pytest.raises(UserError, match="encoder/1 has the head pretraining"):
        evaluate_file(shadowed.tracker, "encoder@candidate", source)


def test_promotion_verifies_the_registered_files_and_no_folder(shadowed: Models) -> None:
    model = shadowed.register(shadowed.encoder(1))
    (package_of(shadowed, model) / "added").write_text("not sealed")
    with pytest.raises(UserError, match="added was added"):
        choose(shadowed, "encoder", "1")


def test_a_registered_encoder_is_taken_into_the_store(models: Models) -> None:
    registered = models.register(models.trained(5))
    reference = f"models:/{registered.name}/{registered.version}"
    found = resolved_encoder(reference, models.tracker, models.context)
    assert found.kind == "imported_model"
    assert found.statistics["source"] == reference
    weights = "model.safetensors"
    assert found.manifest.files[weights].sha256 == (
        models.encoder(5).manifest.files[weights].sha256
    )
    assert resolved_encoder(reference, models.tracker, models.context).reused
    # Our own artifact needs no copy.
    own = models.encoder(5)
    assert (
        resolved_encoder(own.fingerprint, models.tracker, models.context).fingerprint
        == own.fingerprint
    )
    with pytest.raises(UserError):
        resolved_encoder("models:/nobody@champion", models.tracker, models.context)
