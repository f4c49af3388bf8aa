"""Which registered model `predict` asks, and that its bytes are checked."""

from pathlib import Path

import pytest

from flows.cli.app import DONE, MISTAKE, run
from pipelines.registry.find import VERIFIED_TAG
from tests.pipelines.registry.conftest import Models, package_of


def test_the_champion_answers_and_changed_bytes_are_refused(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))  # whose registry the models stand in
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    made = [models.register(models.encoder(seed)) for seed in (1, 2)]
    client = models.tracker.client()
    for number in ("1", "2"):
        client.set_model_version_tag("encoder", number, VERIFIED_TAG, "true")
    client.set_registered_model_alias("encoder", "champion", "1")

    def vector(*options: str) -> str:
        assert run(["predict", "a text", "--json", *options]) == DONE
        return capsys.readouterr().out

    champion = ["--model", "encoder@champion"]
    assert run(["predict", "a text", *champion]) == DONE
    assert capsys.readouterr().err == "model: models:/encoder/1\n"
    first = vector(*champion)
    assert first == vector("--model", "models:/encoder/1")
    client.set_registered_model_alias("encoder", "champion", "2")
    assert vector(*champion) != first
    assert run(["fill-mask", "a [MASK]"]) == DONE
    assert run(["predict", "a text"]) == MISTAKE
    assert "has no verified model of any task" in capsys.readouterr().err

    weights = package_of(models, made[1]) / "artifacts" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert run(["predict", "a text", *champion]) == MISTAKE
    assert "model.safetensors has other bytes" in capsys.readouterr().err
