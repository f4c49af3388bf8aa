"""Registered models go to the Hugging Face hub, by the command line, with the card that it reads.

The hub is a stand-in of its HTTP calls, on the loopback.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bert_core.config import EncoderConfig
from bert_core.hugging_face import import_model
from bert_core.model.catalogue import build_model
from flows.cli.app import MISTAKE, run
from pipelines.registry.register import register
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Built, Draft
from tests.command_line import ended, started
from tests.pipelines.registry.conftest import Models, write_model
from tests.pipelines.registry.hub_stand_in import TOKEN, Hub, running


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running() as one:
        yield one


def pushed(hub: Hub, home: Path, *arguments: str, code: int = 0, token: str = TOKEN) -> str:
    """`bertsmith export` with these arguments, to this hub."""
    process = started(
        "export", *arguments, home=home, HF_ENDPOINT=hub.url, HF_TOKEN=token, HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_XET="1", MLFLOW_TRACKING_URI=f"sqlite:///{home / 'mlflow.db'}",
    )  # fmt: skip
    return ended(process, code)


def card_of(hub: Hub, name: str) -> tuple[dict, str]:
    """The metadata of a repository's card, and its text."""
    _, metadata, text = hub.repositories[name]["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(metadata), text


@pytest.fixture
def classifier(models: Models, tmp_path: Path) -> str:
    """A registered classifier with a head over the mean; its home is `tmp_path`."""
    tokenizer = load_tokenizer(models.vocabulary)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    model = build_model(
        "sequence_classification", config, num_labels=2, labels=("no", "yes"), pooling="mean"
    )

    def build(draft: Draft) -> Built:
        statistics = {"eval/accuracy": 0.875, "score": "eval/accuracy"}
        return Built(write_model(draft, model.eval(), tokenizer), statistics)

    artifact = models.context.store.get_or_build(
        "finetuned", version=1, settings={}, inputs={}, build=build
    )
    submission = replace(models.submission(artifact, "mine"), kind="classification")
    version = register(submission, models.tracker)
    client = models.tracker.client()
    for name, value in (("metric", "eval/accuracy"), ("reproduced", "0.875")):
        client.set_model_version_tag("mine", str(version.version), f"bertsmith.proof.{name}", value)
    return version.reference


def test_a_model_goes_to_the_hub_whole(classifier: str, hub: Hub, tmp_path: Path) -> None:
    described = (
        "--license", "apache-2.0", "--language", "de", "--language", "en", "--base-model",
        "sentence-transformers/all-MiniLM-L6-v2", "--dataset", "stanfordnlp/sst2",
    )  # fmt: skip
    output = pushed(hub, tmp_path, classifier, "--push", "team/mine", "--private", *described)
    assert f"{hub.url}/team/mine" in output and hub.visibilities == {"team/mine": "private"}
    metadata, text = card_of(hub, "team/mine")
    assert metadata["license"] == "apache-2.0" and metadata["language"] == ["de", "en"]
    assert metadata["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert metadata["datasets"] == ["stanfordnlp/sst2"] and metadata["metrics"] == ["accuracy"]
    assert metadata["pipeline_tag"] == "text-classification"
    assert metadata["library_name"] == "transformers" and "custom_code" in metadata["tags"]
    assert "model-index" not in metadata  # it was not evaluated on a dataset of the hub
    assert "## Held-out figures" in text
    assert 'from_pretrained("team/mine", trust_remote_code=True)' in text
    assert str(tmp_path) not in text and "mlflow" not in text
    # What was uploaded is the model.
    folder = tmp_path / "downloaded"
    for path, data in hub.repositories["team/mine"].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    assert import_model(folder).labels


@pytest.mark.slow
def test_an_export_takes_the_place_of_an_earlier_one(
    classifier: str, hub: Hub, tmp_path: Path
) -> None:
    pushed(hub, tmp_path, classifier, "--push", "team/mine")
    files = hub.repositories["team/mine"]
    assert "2_Dense/config.json" in files and hub.visibilities == {"team/mine": None}
    files["notes/mine.json"] = b"{}"
    pushed(hub, tmp_path, classifier, "--push", "team/mine", "--pooling", "mean")
    assert "2_Dense/config.json" not in files and "modeling_mean_bert.py" not in files
    assert "notes/mine.json" in files and "modules.json" in files
    metadata, text = card_of(hub, "team/mine")  # of an encoder alone
    assert metadata["pipeline_tag"] == "sentence-similarity" and "metrics" not in metadata
    assert metadata["library_name"] == "sentence-transformers" in metadata["tags"]
    assert 'SentenceTransformer("team/mine").encode' in text and "AutoModel" not in text
    assert "Held-out" not in text and "classification" not in text
    assert len(hub.commits) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--push", "mine"), "--push must be owner/name, found 'mine'"),
        (("--push", "team/my model"), "--push: Repo id must use alphanumeric"),
        ((), "name the folder to write (--to), a repository of the hub (--push) or both"),
        (("--to", "new", "--private"), "--private is of a repository; name one with --push"),
    ],
)
def test_what_is_no_repository_is_told_before_anything_is_opened(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "mine/1", *arguments]) == MISTAKE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "token", "message"),
    [
        ((), "another", "team/mine could not be pushed (Client error '401"),
        pytest.param(("--license", "nonsense"), TOKEN, "the hub refuses the card",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_what_the_hub_refuses_is_one_sentence(
    arguments: tuple[str, ...], token: str, message: str, classifier: str, hub: Hub, tmp_path: Path
) -> None:
    output = pushed(
        hub, tmp_path, classifier, "--push", "team/mine", *arguments, code=MISTAKE, token=token
    )
    assert message in output.splitlines()[-1]
    assert not hub.commits


@pytest.mark.slow
def test_a_hub_that_is_away_is_one_sentence(classifier: str, tmp_path: Path) -> None:
    with running() as gone:
        pass
    output = pushed(gone, tmp_path, classifier, "--push", "team/mine", code=MISTAKE)
    assert "team/mine could not be pushed" in output.splitlines()[-1]
