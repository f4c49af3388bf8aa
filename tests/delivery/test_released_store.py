"""What a release wrote is opened and used by this code."""

import json
import re
import shutil
from pathlib import Path

import pytest

from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages import CHAIN
from pipelines.stages.corpus.shards import read_documents
from pipelines.stages.dataset.stage import read_items
from pipelines.stages.evaluation import REPORT_FILE, build_evaluation
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact, ArtifactStore
from pipelines.store.pruning import take_inventory
from pipelines.train.imported import existing_encoder

ROOT = Path(__file__).parents[2]
STORES = Path(__file__).parent / "stores"
RELEASES = sorted(path.name for path in STORES.iterdir())
KINDS = {stage.kind: stage for stage in CHAIN}


@pytest.fixture(scope="module", params=RELEASES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the release wrote: reading leaves the original alone."""
    return Path(
        shutil.copytree(STORES / request.param, tmp_path_factory.mktemp("released") / "store")
    )


@pytest.fixture(scope="module")
def artifacts(store: Path) -> dict[str, Artifact]:
    """Its artifacts by kind, opened as any reader opens them."""
    opened = {}
    for manifest in store.glob("*/*/manifest.json"):
        found = ArtifactStore(store).find(manifest.parent.parent.name, manifest.parent.name)
        assert found is not None
        opened[found.kind] = found
    return opened


def test_every_release_left_a_store_and_a_table_of_its_formats() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d\S*)\]", changelog, flags=re.MULTILINE)[::-1] == RELEASES
    tables = re.findall(r"\| kind \| version \|\n\|---\|---\|\n((?:\|.*\|\n)+)", changelog)
    newest = dict(re.findall(r"\| (\w+) \| (\d+) \|", tables[0]))
    assert newest == {stage.kind: str(stage.version) for stage in CHAIN}, (
        "the first table of CHANGELOG.md must name the formats that this code writes: where a "
        "version was raised, put a table with the new ones under [Unreleased]"
    )


def test_all_kinds_are_there_in_known_formats_and_every_file_is_what_it_was(
    store: Path, artifacts: dict[str, Artifact]
) -> None:
    assert set(artifacts) >= set(KINDS)
    for artifact in artifacts.values():
        assert artifact.local_folder().is_dir()  # verifies size and SHA-256 of every file
        assert artifact.names()
    for kind, stage in KINDS.items():
        assert artifacts[kind].manifest.version <= stage.version
    listed = {entry.kind for entry in take_inventory(ArtifactStore(store)) if entry.manifest}
    assert listed == set(artifacts)


def test_texts_tokens_and_examples_are_read(artifacts: dict[str, Artifact]) -> None:
    counts = artifacts["corpus"].statistics
    documents = [*read_documents(artifacts["corpus"], "train")]
    assert len(documents) == counts["train"]["documents"]
    tokenizer = load_tokenizer(artifacts["vocabulary"])
    assert tokenizer.vocab_size == artifacts["vocabulary"].statistics["size"]
    text = documents[0].text.lower()
    assert tokenizer.decode(tokenizer.encode(text)).split()[0] == text.split()[0]
    reader = ExampleReader(artifacts["examples"], "train")
    assert len(reader) == artifacts["examples"].statistics["train"]["examples"]
    batches = [*micro_batches(reader, seed=0, step=0, global_batch_size=4, micro_batch_size=2)]
    assert len(batches) == 2


def test_models_answer_as_they_did(artifacts: dict[str, Artifact], tmp_path: Path) -> None:
    folder = artifacts["finetuned"].local_folder()
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    assert load_model(artifacts["encoder"].local_folder()).config == model.config
    assert tokenizer.tokens == load_tokenizer(artifacts["vocabulary"]).tokens
    heldout = read_items(artifacts["dataset"], "heldout")
    assert sorted(heldout.labels) == ["calm", "loud"]
    fresh = StageContext(store=ArtifactStore(tmp_path / "store"))
    again = build_evaluation(artifacts["finetuned"], artifacts["dataset"], fresh)
    assert again.statistics["items"] == len(heldout.rows)
    before = artifacts["evaluation"].statistics
    # Of two classes with names none is known to be the positive one.
    figures = {name for name, value in before.items() if isinstance(value, float)} - {"eval/f1"}
    assert figures
    for name in figures:
        assert again.statistics[name] == pytest.approx(before[name], abs=1e-4), name
    was = json.loads(artifacts["evaluation"].local(REPORT_FILE).read_text())
    assert json.loads(again.local(REPORT_FILE).read_text()).keys() >= was.keys()


@pytest.mark.slow
def test_trainings_go_on_from_them(
    artifacts: dict[str, Artifact], local_ray: None, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "store")
    context = StageContext(store=store, runtime=RuntimeSettings(training_workers=1, device="cpu"))
    small = {"global_batch_size": 8, "micro_batch_size": 4, "precision": "float32"}
    old = artifacts["encoder"].local_folder()
    further = PretrainingSettings(
        encoder=str(old), size=None, num_steps=2, evaluation_examples=8,
        final_evaluation_examples=8, **small,
    )  # fmt: skip
    encoder = build_encoder(further, artifacts["examples"], artifacts["vocabulary"], context)
    assert encoder.statistics["num_steps"] == 2
    taken = existing_encoder(str(old), context)
    finetuning = FinetuningSettings(num_epochs=1, num_evaluations=1, **small)
    model = build_task_model(finetuning, artifacts["dataset"], taken, context)
    assert model.manifest.inputs["dataset"] == artifacts["dataset"].fingerprint
    assert model.manifest.settings["learning_rate"] == 1e-3  # what auto comes to for its size
