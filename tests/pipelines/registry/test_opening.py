"""A model that has to be fetched: there while it is used, gone afterwards."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from bert_core.training.state import load_model
from pipelines.errors import UserError
from pipelines.registry.package import local_model, located, open_model, resolved_encoder
from tests.integration.object_stores import BUCKET, s3_server
from tests.pipelines.registry.conftest import Models


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
