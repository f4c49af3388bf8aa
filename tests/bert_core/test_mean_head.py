"""Heads for whole texts that read the mean of all tokens, in place of the pooled first one."""

import json

import numpy as np
import pytest
import torch

from bert_core.batch import RaggedBatch
from bert_core.hugging_face import export_model, import_model, reads_mean
from bert_core.inference.answers import classify
from bert_core.inference.texts import encode_texts
from bert_core.model.catalogue import build_model
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from tests.bert_core.batches import ragged_batch, small_config

HEADS = {
    "sequence_classification": {"num_labels": 3},
    "multi_label_classification": {"num_labels": 3},
    "regression": {},
    "multiple_choice": {},
}
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TEXTS = ["a short one", "b", "one of a rather greater length than the others have"]


def new_model(head="sequence_classification", **settings):
    torch.manual_seed(0)
    return build_model(head, small_config(initializer_range=0.2), **HEADS[head] | settings)


@pytest.mark.parametrize("head", HEADS)
def test_logits_are_the_head_over_the_mean_of_each_sequence(head):
    model = new_model(head, pooling="mean")
    tokens = ragged_batch()
    hidden = model.encoder(tokens).split(tokens.lengths)
    means = torch.stack([each.double().mean(dim=0) for each in hidden])
    dense = model.task_head.dense
    expected = means @ dense.weight.double().T + dense.bias.double()
    found = model(tokens).double().reshape(len(tokens.lengths), -1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_what_it_reads_is_saved_with_it(tmp_path, head):
    model = new_model(head, pooling="mean")
    save_model(tmp_path / "model", model)
    again = load_model(tmp_path / "model")
    assert again.pooler is None
    assert torch.equal(again(ragged_batch()), model(ragged_batch()))


def test_a_published_head_says_nothing_of_it():
    assert "pooling" not in new_model().head_settings()
    assert not new_model("regression").head_settings()
    with pytest.raises(ValueError, match="pooling must be pooler or mean, got 'max'"):
        new_model(pooling="max")


def test_sentence_transformers_gives_its_logits_and_transformers_its_encoder(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    tokens = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    tokenizer = WordPieceTokenizer(tokens)
    torch.manual_seed(0)
    model = build_model(
        "sequence_classification", small_config(vocab_size=len(tokens), initializer_range=0.2),
        num_labels=3, labels=("x", "y", "z"), pooling="mean",
    )  # fmt: skip
    assert reads_mean(model)
    folder = tmp_path / "exported"
    export_model(folder, model, tokenizer)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    logits = theirs.encode(TEXTS, show_progress_bar=False)
    ours = model(RaggedBatch.from_sequences(encode_texts(tokenizer, TEXTS, 64).sequences))
    np.testing.assert_allclose(logits, ours.detach().numpy(), atol=1e-5)
    named = json.loads((folder / "config.json").read_text())["id2label"]
    said = classify(model, tokenizer, TEXTS).labels
    assert [named[str(index)] for index in logits.argmax(axis=1)] == said
    assert isinstance(transformers.AutoModel.from_pretrained(folder), transformers.BertModel)
    assert import_model(folder).pooler is None
