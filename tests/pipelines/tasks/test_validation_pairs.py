"""Pairs that a fine-tuning of sentence embeddings sets aside to stop by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import EncoderModel
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.stages.finetuning import training
from pipelines.stages.finetuning.settings import FinetuningSettings, split_of
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import Items, family
from pipelines.tasks.sentence_embedding import Pairs
from pipelines.train.imported import existing_encoder
from tests.pipelines.tasks.letters import TOKENS

FAMILY = family("sentence_embedding")
NUMBERS = ("0", "1", "2.5", "4", "4.2", "5")


def pairs(*labels: str) -> Items:
    return Items([
        FAMILY.item({"text": "a", "second_text": second, "label": label})
        for second, label in zip("bcdefg", labels, strict=False)
    ])  # fmt: skip


def values(learned: Items, measured: Items) -> list[Any]:
    parts = FAMILY.on_one_scale(learned, measured)
    return [pytest.approx([item["value"] for item in part.rows]) for part in parts]


def test_what_is_measured_has_the_scale_of_what_is_learned() -> None:
    learned, measured = pairs("0", "2", "5"), pairs("4.0", "4.2", "4.5", "6")
    classes = pairs("entailment", "neutral")
    assert values(learned, measured) == [[0, 0.4, 1], [0.8, 0.84, 0.9, 1.2]]
    assert values(learned, classes) == [[0, 0.4, 1], [1, 0.5]]
    assert values(classes, learned) == [[1, 0.5], [0, 0.4, 1]]
    assert values(classes, classes) == [[1, 0.5], [1, 0.5]]


def test_parts_of_which_nothing_is_learned_or_measured_are_refused() -> None:
    near, far = pairs("entailment"), pairs("neutral")
    with pytest.raises(UserError, match="1 pairs that are set aside for validation belong togeth"):
        FAMILY.on_one_scale(near, far)
    with pytest.raises(UserError, match="1 pairs that are learned from belong together; set anoth"):
        FAMILY.on_one_scale(far, near)
    with pytest.raises(UserError, match="all 3 pairs that are learned from have the number 3, sin"):
        FAMILY.on_one_scale(pairs("3", "3", "3"), pairs("1"))


def finetuning(folder: Path, labels: tuple[str, ...]) -> tuple[training.Finetuning, Artifact]:
    """One rank's work on pairs with these labels, of which three are set aside."""
    context = StageContext(store=ArtifactStore(folder / "store"))
    paths = {name: folder / f"{name}.csv" for name in ("train", "heldout")}
    for name, path in paths.items():
        lines = [f"{name[0]} {'x' * n},{'y' * n},{label}" for n, label in enumerate(labels, 1)]
        path.write_text("\n".join(["text,second_text,label", *lines]))
    source = LabelledFile(path=str(paths["train"]), heldout_path=str(paths["heldout"]))
    dataset = build_dataset(
        DatasetSettings(family="sentence_embedding", source=source), None, context
    )
    torch.manual_seed(0)
    encoder = EncoderModel(encoder_config("tiny", len(TOKENS), max_position_embeddings=32))
    save_model(folder / "encoder", encoder)
    WordPieceTokenizer(TOKENS).save(folder / "encoder")
    settings = FinetuningSettings(patience=1, validation_items=3, num_epochs=1.0)
    job = training.FinetuningJob(
        stage="fine-tuning", settings=settings, precision="float32", cut=split_of(settings),
        dataset=dataset, encoder=existing_encoder(str(folder / "encoder"), context),
        initialization="pretrained",
    )  # fmt: skip
    return job.on_rank(), dataset


@pytest.fixture
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "rank_and_world_size", lambda: (0, 1))


@pytest.mark.usefixtures("_one_rank")
def test_training_stops_by_numbers_on_the_scale_that_it_learns(tmp_path: Path) -> None:
    work, dataset = finetuning(tmp_path, NUMBERS * 2)
    assert isinstance(work._train, Pairs) and isinstance(work._evaluated, Pairs)
    learned, measured = work._train.labels, work._evaluated.labels
    assert (len(learned), len(measured)) == (9, 3)
    assert (learned.min(), learned.max()) == (0, 1)
    together = np.sort(np.concatenate([learned, measured])) * 5
    expected = sorted(item["value"] for item in read_items(dataset, "train").rows)
    np.testing.assert_allclose(together, expected, rtol=1e-6)


@pytest.mark.usefixtures("_one_rank")
def test_a_single_pair_that_belongs_together_is_no_index_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belong together; set another number with finetuning"):
        finetuning(tmp_path, ("entailment", *["neutral"] * 11))
