"""A registered model leaves as ONNX, compared with the original."""

from pathlib import Path

import pytest

from bert_core.hugging_face import export_model
from bert_core.model.catalogue import build_model
from bert_core.training.state import save_model
from flows.cli.app import DONE, MISTAKE, run
from pipelines.registry import exchange
from pipelines.stages.vocabulary.stage import load_tokenizer
from tests.bert_core.batches import small_config
from tests.pipelines.registry.conftest import Models

FILES = {"config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}


@pytest.fixture
def export(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Type `bertsmith export … --format onnx` in the home whose registry has the models."""
    pytest.importorskip("onnxscript", reason="pip install 'bertsmith[onnx]'")
    pytest.importorskip("onnxruntime", reason="pip install 'bertsmith[onnx]'")
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")

    def typed(name: str, folder: Path, *options: str) -> int:
        asked = ["export", name, "--to", str(folder), "--format", "onnx"]
        return run([*asked, *options])

    return typed


@pytest.mark.slow
def test_registered_models_and_folders_are_written_and_compared(
    models: Models, export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.register(models.encoder(1))
    tokenizer = load_tokenizer(models.vocabulary)
    model = build_model("regression", small_config(vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "ours", model)
    tokenizer.save(tmp_path / "ours")
    export_model(tmp_path / "theirs", model, tokenizer)
    for number, name in enumerate(("encoder/1", str(tmp_path / "ours"), str(tmp_path / "theirs"))):
        folder = tmp_path / f"onnx-{number}"
        assert export(name, folder) == DONE
        assert "answers like the model: the largest difference is" in capsys.readouterr().out
        assert {path.name for path in folder.iterdir()} >= FILES
    assert export("encoder/1", folder) == MISTAKE
    assert "must be new or empty" in capsys.readouterr().err
    assert export("encoder/1", tmp_path / "vectors", "--pooling", "mean") == MISTAKE
    assert "--pooling is for sentence-transformers" in capsys.readouterr().err


@pytest.mark.slow
def test_other_values_than_the_model_s_are_not_written(
    models: Models, export, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    models.register(models.encoder(1))
    monkeypatch.setattr(exchange, "MOST_DIFFERENT", 0.0)
    assert export("encoder/1", tmp_path / "refused") == MISTAKE
    assert "ONNX Runtime computes other values than the model" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if "refused" in path.name]
