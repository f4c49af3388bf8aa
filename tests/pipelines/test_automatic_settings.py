"""What `auto` means in a fine-tuning: epochs by the number of items, a head by the encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from bert_core.config import EmbeddingConfig, encoder_config
from bert_core.hugging_face import export_model
from bert_core.model.catalogue import EncoderModel
from bert_core.training.state import save_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.stage import Progress, StageContext
from pipelines.stages.dataset.settings import DatasetSettings
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import automatic_epochs, resolved_settings
from pipelines.store import Artifact, ArtifactStore
from pipelines.train.imported import existing_encoder

TOKENS = [*SPECIAL_TOKENS, "good", "bad", "one"]


@pytest.mark.parametrize(
    ("num_items", "epochs"),
    [(1, 20), (500, 20), (1000, 14), (2000, 10), (6000, 6), (16_400, 3), (10**6, 3)],
)
def test_few_items_are_passed_over_more_often(num_items: int, epochs: int) -> None:
    assert automatic_epochs(num_items) == epochs


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    return StageContext(store=ArtifactStore(tmp_path / "store"))


def dataset(context: StageContext, folder: Path, family: str = "classification") -> Artifact:
    if family == "tagging":
        name, head, items = "items.txt", "", "good A\none B\n\nbad C\none B\n\n"
        other = "one B\ngood A\n\n"
    else:
        name, head, items = "items.csv", "text,label\n", "good one,x\nbad one,y\n"
        other = "one good,x\n"
    path, heldout = folder / name, folder / f"heldout-{name}"
    path.write_text(head + items * 20)
    heldout.write_text(head + items + other)
    source = {"kind": "labelled_file", "path": str(path), "heldout_path": str(heldout)}
    settings: dict[str, Any] = {"family": family, "source": source}
    return build_dataset(DatasetSettings.model_validate(settings), None, context)


def encoder(
    context: StageContext, folder: Path, pooling: Any = None, *, is_ours: bool, **settings: Any
) -> Artifact:
    torch.manual_seed(0)
    model = EncoderModel(
        encoder_config("tiny", len(TOKENS), max_position_embeddings=32, **settings)
    )
    model.embedding = None if pooling is None else EmbeddingConfig(pooling=pooling)
    tokenizer = WordPieceTokenizer(TOKENS)
    if is_ours:
        save_model(folder, model)
        tokenizer.save(folder)
    else:
        export_model(folder, model, tokenizer)
    return existing_encoder(str(folder), context)


@pytest.mark.parametrize(
    ("pooling", "read"), [(None, "pooler"), ("cls", "pooler"), ("mean", "mean")]
)
def test_a_published_encoder_keeps_the_paper_s_head_unless_it_makes_vectors_of_a_mean(
    context: StageContext, tmp_path: Path, pooling: Any, read: str
) -> None:
    items = dataset(context, tmp_path)
    start = encoder(context, tmp_path / "there", pooling, is_ours=False)
    said: list[Progress] = []
    found = resolved_settings(FinetuningSettings(), items, start, said.append)
    assert (found.pooling, found.num_epochs) == (read, 20.0)
    assert found.learning_rate == 1e-3  # of BERT-tiny's size
    notes = [progress.note for progress in said]
    assert any("num_epochs=auto is 20 for 40 training items" in note for note in notes)
    assert not any("marks" in note for note in notes)  # these texts have none
    with pytest.raises(ValidationError, match="reach beyond the largest seed"):
        FinetuningSettings(seed=2**31 - 2, num_seeds=3)


@pytest.mark.parametrize(
    ("text", "num_changed"),
    # Of four different words, labels counted; a Japanese sentence is one word here.
    [
        ("второй дом", 1), ("की दुकान", 1), ("ร้านค้า เปิด", 2),
        ("これが本です はい", 1), ("café ouvert", 1), ("한국어 책", 0),
        ("plain text", 0),
    ],
)  # fmt: skip
def test_a_tokenizer_that_removes_marks_says_from_how_many_words_and_what_to_do(
    context: StageContext, tmp_path: Path, text: str, num_changed: int
) -> None:
    path = tmp_path / "items.csv"
    rows = "".join(f"{text},{label}\n" for label in ("x", "y") * 20)
    path.write_text(f"text,label\n{rows}", encoding="utf-8")
    heldout = tmp_path / "heldout.csv"
    heldout.write_text("text,label\nother,x\n", encoding="utf-8")
    source = {"kind": "labelled_file", "path": str(path), "heldout_path": str(heldout)}
    items = build_dataset(DatasetSettings.model_validate({"source": source}), None, context)
    start = encoder(context, tmp_path / "there", is_ours=False)
    notes: list[str] = []
    resolved_settings(
        FinetuningSettings(), items, start, lambda progress: notes.append(progress.note)
    )
    told = [note for note in notes if "marks" in note]
    assert len(told) == bool(num_changed)
    for note in told:
        assert f"from {num_changed} of 4 different words; if they matter, take an" in note


def test_an_encoder_of_ours_is_read_by_the_mean_wherever_it_lies(
    context: StageContext, tmp_path: Path
) -> None:
    items = dataset(context, tmp_path)
    start = encoder(context, tmp_path / "there", is_ours=True)
    assert (
        resolved_settings(FinetuningSettings(), items, start, lambda progress: None).pooling
        == "mean"
    )


def test_a_head_that_reads_words_has_no_pooling(context: StageContext, tmp_path: Path) -> None:
    items = dataset(context, tmp_path, "tagging")
    start = encoder(context, tmp_path / "there", "mean", is_ours=False)
    assert (
        resolved_settings(FinetuningSettings(), items, start, lambda progress: None).pooling
        == "pooler"
    )


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_causal_encoder_is_not_read_by_its_first_token(
    context: StageContext, tmp_path: Path, is_ours: bool
) -> None:
    items = dataset(context, tmp_path)
    start = encoder(context, tmp_path / "there", is_ours=is_ours, causal=True)
    read = resolved_settings(FinetuningSettings(), items, start, lambda progress: None)
    assert read.pooling == "mean"
    with pytest.raises(UserError, match="first token, which sees only itself"):
        resolved_settings(FinetuningSettings(pooling="pooler"), items, start, lambda progress: None)
