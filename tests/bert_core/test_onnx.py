"""A model as ONNX gives what it gives itself, whatever the number of texts and their lengths."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from bert_core.config import EmbeddingConfig
from bert_core.model.catalogue import build_model
from bert_core.onnx import (
    INPUTS,
    OnnxModel,
    PaddedModel,
    export_onnx,
    is_of_tokens,
    outputs_of,
    write_onnx_folder,
)
from bert_core.vocabulary import SPECIAL_TOKENS, Normalization, WordPieceTokenizer
from tests.bert_core.batches import ragged_batch, small_config
from tests.bert_core.test_backends import HEAD_SETTINGS, new_model

OTHERS = sorted(HEAD_SETTINGS.keys() - {"multiple_choice"})
HEADS = ("encoder", *OTHERS, "sentence_embedding")
OTHER_BATCHES = ((64, 3, 17), (1,), (2, 2), (5, 64, 40, 9, 1, 30, 12))  # than the traced 2 of 8


def model_with(head):
    if head in HEAD_SETTINGS:
        return new_model(head).eval()
    torch.manual_seed(0)
    return build_model(head, small_config()).eval()


def padded_inputs(tokens):
    values = (tokens.input_ids, torch.ones_like(tokens.input_ids), tokens.token_type_ids)
    return [tokens.padded(each, 0) for each in values]


def assert_padding_counts_for_nothing(model, lengths):
    tokens = ragged_batch(lengths)
    with torch.inference_mode():
        expected = outputs_of(model, tokens)
        padded_outputs = PaddedModel(model)(*padded_inputs(tokens))
    for values, (name, ours) in zip(padded_outputs, expected.items(), strict=True):
        if is_of_tokens(model, name):
            values = values.flatten(0, 1)[tokens.padded_positions]
        torch.testing.assert_close(values.reshape(ours.shape), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_a_padded_batch_gives_what_a_ragged_one_gives(head):
    for lengths in OTHER_BATCHES:
        assert_padding_counts_for_nothing(model_with(head), lengths)


def test_a_head_over_the_mean_reads_no_padding():
    model = model_with("sequence_classification")
    model.pooler = None
    assert_padding_counts_for_nothing(model, OTHER_BATCHES[0])


def exported(model, path):
    pytest.importorskip("onnxscript", reason="pip install 'bertsmith[onnx]'")
    pytest.importorskip("onnxruntime", reason="pip install 'bertsmith[onnx]'")
    export_onnx(model, path)
    return OnnxModel(path, model)


def assert_same(onnx):
    difference, magnitude = onnx.compare(map(ragged_batch, OTHER_BATCHES))
    assert 0 < difference <= 1e-5 * magnitude


def test_onnx_runtime_answers_batches_of_any_size(tmp_path):
    onnx = exported(model_with("encoder"), tmp_path / "model.onnx")
    assert_same(onnx)
    inputs = onnx.session.get_inputs()
    assert [each.name for each in inputs] == list(INPUTS)
    assert [each.shape for each in inputs] == [["batch_size", "sequence_length"]] * 3
    onnx.model.encoder.embeddings.layer_norm.bias.data += 0.5
    # Another model's answers are told apart.
    assert onnx.compare([ragged_batch()])[0] > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("head", [*OTHERS, "sentence_embedding"])
def test_so_does_it_for_every_head(head, tmp_path):
    assert_same(exported(model_with(head), tmp_path / "model.onnx"))


def test_a_model_of_few_positions_is_written_too(tmp_path):
    model = build_model("encoder", small_config(max_position_embeddings=4)).eval()
    onnx = exported(model, tmp_path / "model.onnx")
    assert onnx.compare([ragged_batch((4, 2)), ragged_batch((3,))])[0] < 1e-5


def test_the_folder_s_tokenizer_reads_texts_as_the_model_embeds_them(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_core.onnx.export_onnx", lambda model, path: None)
    tokens = [*SPECIAL_TOKENS, "hello", "wörld", "world", "H", "##ello"]
    tokenizer = WordPieceTokenizer(tokens, Normalization(lowercase=False))
    text, positions = "Hello WÖRLD", small_config().max_position_embeddings
    for head, words, most in (
        ("encoder", ["hello", "wörld"], 16),
        ("sentence_embedding", ["hello", "wörld"], 16),
        ("pretraining", ["H", "##ello", "[UNK]"], positions),  # fills gaps: embeds nothing
    ):
        model = model_with(head)
        model.embedding = EmbeddingConfig(lowercase=True, max_tokens=16)
        (tmp_path / head).mkdir()
        write_onnx_folder(tmp_path / head, model, tokenizer)
        theirs = Tokenizer.from_file(str(tmp_path / head / "tokenizer.json"))
        assert theirs.encode(text).tokens == ["[CLS]", *words, "[SEP]"]
        settings = json.loads((tmp_path / head / "tokenizer_config.json").read_text())
        assert settings["model_max_length"] == most
        assert WordPieceTokenizer.from_directory(tmp_path / head).encode(text) == [
            tokens.index(word) for word in words
        ]


def test_multiple_choice_is_refused():
    with pytest.raises(ValueError, match="a multiple_choice model cannot be written as ONNX"):
        outputs_of(model_with("multiple_choice"), ragged_batch())


def test_rows_of_padding_alone_harm_no_others():
    model, tokens = model_with("encoder"), ragged_batch((9, 4))
    rows = [torch.cat((each, torch.zeros_like(each[:1]))) for each in padded_inputs(tokens)]
    with torch.inference_mode():
        (hidden,) = PaddedModel(model)(*rows)
        expected = outputs_of(model, tokens)["last_hidden_state"]
    ours = hidden[:2].flatten(0, 1)[tokens.padded_positions]
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert hidden[:2].isfinite().all()
