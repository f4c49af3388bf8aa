"""Pairs of texts whose vectors are to be near: what is read, what is learned, and the loss."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_core.config import EmbeddingConfig, EncoderConfig
from bert_core.hugging_face import export_model, import_model
from bert_core.inference.pretrained import embed
from bert_core.inference.tables import answer_table
from bert_core.model.catalogue import EncoderModel
from bert_core.model.task_models import SCALE, SentenceEncoder
from bert_core.training.state import load_encoder_into, load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.store import ArtifactStore
from pipelines.tasks import BadItemError, Items, Reading, family
from tests.pipelines.tasks.letters import LETTERS, learn

FAMILY = family("sentence_embedding")
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
CONFIG = EncoderConfig(
    vocab_size=len(TOKENS), hidden_size=32, num_layers=1, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=16, hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(TOKENS)


@pytest.fixture
def model() -> SentenceEncoder:
    torch.manual_seed(0)
    return SentenceEncoder(CONFIG)


def pair(first: str, second: str, label: str | None, other: str | None = None) -> dict[str, Any]:
    return {"text": first, "second_text": second, "label": label, "other_text": other}


def items(*records: dict[str, Any]) -> Items:
    return Items([FAMILY.item(record) for record in records])


def test_numbers_become_cosines_between_the_least_and_the_greatest(
    model: SentenceEncoder, tokenizer: WordPieceTokenizer
) -> None:
    rows = items(pair("a b", "c", "0"), pair("d", "e f g", "2"), pair("h", "i", "5"))
    rows, _ = FAMILY.on_one_scale(rows, rows)
    batch = FAMILY.examples(rows, tokenizer, Reading(16)).batch(np.array([2, 0, 1]))
    torch.testing.assert_close(batch.labels, torch.tensor([1.0, 0.0, 0.4]))
    first = embed(model, tokenizer, ["h", "a b", "d"]).vectors
    second = embed(model, tokenizer, ["i", "c", "e f g"]).vectors
    expected = float((((first * second).sum(axis=1) - batch.labels.numpy()) ** 2).sum())
    loss = model.loss_sums(batch)["label"]
    assert loss.num_items == 3
    assert float(loss.total.detach()) == pytest.approx(expected, rel=1e-5)


def test_the_own_second_text_is_chosen_and_pairs_that_share_a_text_do_not_count(
    model: SentenceEncoder, tokenizer: WordPieceTokenizer
) -> None:
    rows = items(
        pair("a b", "c d", "entailment"),
        pair("a b", "e", "entailment"),
        pair("f", "g h", "entailment"),
        pair("i", "e", "entailment"),
        pair("a b", "x", "contradiction"),
        pair("f", "y", "neutral"),
    )
    examples = FAMILY.examples(rows, tokenizer, Reading(16))
    assert len(examples) == 4
    batch = examples.batch(np.arange(4))
    first = embed(model, tokenizer, ["a b", "a b", "f", "i"]).vectors
    candidates = embed(model, tokenizer, ["c d", "e", "g h", "e", "x", "x"]).vectors
    scores = SCALE * first @ candidates.T
    # By hand: the own one first; the first two share a text, the second and the fourth another.
    against = [[0, 2, 3, 4, 5], [1, 2, 4, 5], [2, 0, 1, 3, 4, 5], [3, 0, 2, 4, 5]]
    expected = sum(
        math.log(sum(math.exp(scores[row, place]) for place in places)) - scores[row, places[0]]
        for row, places in enumerate(against)
    )
    assert float(model.loss_sums(batch)["label"].total.detach()) == pytest.approx(
        expected, rel=1e-5
    )


def test_pairs_that_belong_together_are_learned_without_labels(
    tokenizer: WordPieceTokenizer, model: SentenceEncoder
) -> None:
    """Upper and lower half of the alphabet, letter by letter: a is near n, b near o."""
    random = np.random.default_rng(0)

    def drawn() -> tuple[str, str]:
        letters = random.choice(13, 3, replace=False)
        return tuple(" ".join(LETTERS[13 * half + letter] for letter in letters) for half in (0, 1))

    rows = items(*(pair(*drawn(), None) for _ in range(400)))
    examples = FAMILY.examples(rows, tokenizer, Reading(16))
    learn(model, examples, 150, rate=3e-3)
    first, second = zip(*(drawn() for _ in range(40)), strict=True)
    vectors = [embed(model, tokenizer, list(texts)).vectors for texts in (first, second)]
    nearest = (vectors[0] @ vectors[1].T).argmax(axis=1)
    assert np.mean([first[i] == first[j] or i == j for i, j in enumerate(nearest)]) > 0.8


def test_parts_that_teach_or_measure_nothing_are_refused() -> None:
    near, far = pair("a", "b", "entailment"), pair("a", "c", "contradiction")
    number, other = pair("a", "b", "1"), pair("a", "c", "2")

    def labels(train: list[Any], heldout: list[Any]) -> None:
        FAMILY.labels(items(*train).rows, items(*heldout).rows)

    labels([near, far], [number, other])
    labels([number, other], [near, far])
    labels([pair("a", "b", str(place % 6)) for place in range(40)], [near, far] * 20)
    with pytest.raises(UserError, match="some training pairs have numbers and some have none"):
        labels([near, number], [near, far])
    with pytest.raises(UserError, match="all training pairs have the number 1;"):
        labels([number, number], [near, far])
    with pytest.raises(UserError, match="none of the 1 pairs to train on belong together"):
        labels([far], [near, far])
    with pytest.raises(UserError, match="pairs to evaluate on are all equally similar"):
        labels([near], [near, near])
    with pytest.raises(UserError, match="both texts of every pair are the same"):
        labels([pair("a", "a", "entailment")], [near, far])
    with pytest.raises(BadItemError, match="have a negative that is another text"):
        FAMILY.item({"text": "a", "second_text": "b", "negative": "b"})


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_files_of_triplets_and_of_pairs_with_numbers(suffix: str, tmp_path: Path) -> None:
    train, heldout = tmp_path / f"train.{suffix}", tmp_path / "dev.tsv"
    rows = [{"text": f"a {n}", "second_text": f"b {n}", "negative": f"c {n}"} for n in range(5)]
    if suffix == "csv":
        lines = ["text,second_text,negative", *(",".join(row.values()) for row in rows)]
    else:
        lines = [json.dumps(row) for row in rows]
    train.write_text("\n".join(lines))
    heldout.write_text("index\ttext\tsecond_text\tlabel\n0\tA man.\tA boy.\t3.2\n1\tA.\tB.\t0.5\n")
    source = LabelledFile(path=str(train), heldout_path=str(heldout))
    settings = DatasetSettings(family="sentence_embedding", source=source)
    context = StageContext(store=ArtifactStore(tmp_path / "store"))
    dataset = build_dataset(settings, None, context)
    first = read_items(dataset, "train").rows[0]
    assert (first["text"], first["second_text"], first["other_text"]) == ("a 0", "b 0", "c 0")
    assert [row["value"] for row in read_items(dataset, "heldout").rows] == [3.2, 0.5]
    assert dataset.statistics["pairs_with_another_text"] == 5


def test_tables_are_answered_with_vectors_or_with_cosines(
    model: SentenceEncoder, tokenizer: WordPieceTokenizer
) -> None:
    vectors = answer_table(model, tokenizer, {"text": ["a b", "c"]})["embedding"]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 1.0])
    both = answer_table(model, tokenizer, {"text": ["a b", "c"], "second_text": ["a b", "d"]})
    assert both["value"][0] == pytest.approx(1.0)
    rows = items(pair("a b", "a b", "1"), pair("c", "d", "0"))
    answers = FAMILY.answers(model, tokenizer, rows, Reading(16))
    assert answers.values == pytest.approx(both["value"])


def test_vectors_are_made_as_the_encoder_makes_them_in_training_saved_and_exported(
    tokenizer: WordPieceTokenizer, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    encoder = EncoderModel(CONFIG, pooler=False)
    encoder.embedding = EmbeddingConfig(pooling="cls", max_tokens=4)
    save_model(tmp_path / "encoder", encoder)
    started = SentenceEncoder(CONFIG)
    load_encoder_into(started, tmp_path / "encoder")
    assert started.embedding == encoder.embedding
    texts = ["a b", "c d e f"]
    expected = embed(encoder, tokenizer, texts).vectors
    np.testing.assert_array_equal(embed(started, tokenizer, texts).vectors, expected)
    rows = items(pair(*texts, "1"), pair("a", "a", "0"))
    answered = FAMILY.answers(started, tokenizer, rows, Reading(16)).values
    assert answered[0] == pytest.approx(float(expected[0] @ expected[1]))
    save_model(tmp_path / "saved", started)
    export_model(tmp_path / "exported", started, tokenizer)
    for folder, read in (("saved", load_model), ("exported", import_model)):
        again = read(tmp_path / folder)
        assert again.embedding == encoder.embedding
        np.testing.assert_array_equal(embed(again, tokenizer, texts).vectors, expected)
