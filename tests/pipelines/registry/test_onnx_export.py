"""A registered model leaves as ONNX: verified on its held-out items, and smaller where asked."""

from pathlib import Path

import pytest

from bert_core.hugging_face import export_model
from bert_core.model.catalogue import build_model
from bert_core.training.state import save_model
from flows.cli.app import DONE, MISTAKE, run
from pipelines.stages.vocabulary.stage import load_tokenizer
from tests.bert_core.batches import small_config
from tests.pipelines.registry.classifiers import finetuned, labelled_texts, proved
from tests.pipelines.registry.conftest import Models

FILES = {"README.md", "config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json",
         "vocab.txt"}  # fmt: skip


@pytest.fixture
def export(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Type `bertsmith export … --format onnx` in the home whose registry has the models."""
    pytest.importorskip("onnxscript", reason="pip install 'bertsmith[onnx]'")
    pytest.importorskip("onnxruntime", reason="pip install 'bertsmith[onnx]'")
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")

    def typed(name: str, folder: Path, *options: str) -> int:
        asked = ["export", name, "--to", str(folder), "--format", "onnx"]
        return run([*asked, "--store", models.context.store.url, *options])

    return typed


@pytest.mark.slow
def test_a_classifier_and_its_int8_repeat_the_score(
    models: Models, export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = labelled_texts(models, tmp_path)
    artifact = finetuned(models, dataset, 150)
    score = artifact.statistics["eval/accuracy"]
    assert score > 0.75  # always no is right in two thirds
    count = dataset.statistics["items"]["heldout"]
    proved(models, artifact, dataset)
    folder = tmp_path / "exported"
    assert export("classifier/1", folder, "--quantize", "int8") == DONE
    said = capsys.readouterr().out
    assert (
        f"{count} held-out sequences (dataset/{dataset.fingerprint}), accuracy {score:.4f}" in said
    )
    assert f"MB, accuracy {score:.4f}, " in said.split("model.onnx: ")[1].splitlines()[0]
    assert "model_quantized.onnx: " in said
    assert {path.name for path in folder.iterdir()} == {*FILES, "model_quantized.onnx"}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(line.strip() in card for line in said.splitlines() if "MB" in line)
    assert export("classifier/1", folder) == MISTAKE
    assert "must be new or empty" in capsys.readouterr().err

    spoiled = finetuned(models, dataset, 150, outlier=1e4)
    assert spoiled.statistics["eval/accuracy"] == score
    proved(models, spoiled, dataset)
    refused = tmp_path / "refused"
    assert export("classifier/2", refused, "--quantize", "int8") == MISTAKE
    said = capsys.readouterr().err
    assert "int8 may lower the held-out accuracy by at most 0.01, found 0." in said
    assert f"after {score:.4f}; nothing was written" in said
    assert not [path for path in tmp_path.iterdir() if "refused" in path.name]
    assert export("classifier/2", refused, "--quantize", "int8", "--tolerance", "1") == DONE


@pytest.mark.slow
def test_an_encoder_repeats_its_masked_tokens_and_gives_vectors(
    models: Models, export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.proved_encoder(1, 5)
    assert export("encoder/1", tmp_path / "tokens") == DONE
    said = capsys.readouterr().out
    assert "held-out sequences (examples/" in said
    assert "mlm_accuracy" in said
    assert export("encoder/1", tmp_path / "vectors", "--pooling", "mean") == DONE
    said = capsys.readouterr().out
    assert "8 texts, because vectors of an encoder have none" in said
    names = {path.name for path in (tmp_path / "vectors").iterdir()}
    assert names >= {*FILES, "modules.json", "1_Pooling"}
    both = ["--pooling", "mean", "--quantize", "int8"]
    assert export("encoder/1", tmp_path / "no", *both) == MISTAKE
    assert "what that costs is measured on held-out items" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_is_held_against_a_few_texts(
    models: Models, export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer(models.vocabulary)
    model = build_model("regression", small_config(vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "ours", model)
    tokenizer.save(tmp_path / "ours")
    export_model(tmp_path / "theirs", model, tokenizer)
    for name in ("ours", "theirs"):
        assert export(str(tmp_path / name), tmp_path / f"{name}-onnx") == DONE
        assert "8 texts, because a folder has none" in capsys.readouterr().out
    options = ["--to", str(tmp_path / "new"), "--quantize", "int8"]
    assert run(["export", str(tmp_path / "ours"), *options]) == MISTAKE
    assert "--quantize is for ONNX files" in capsys.readouterr().err
