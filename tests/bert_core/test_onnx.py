"""A model as ONNX gives what it gives itself, whatever the number of texts and their lengths."""

import numpy as np
import pytest
import torch

from bert_core.config import EmbeddingConfig
from bert_core.model.catalogue import Model, build_model
from bert_core.onnx import (
    INPUTS,
    OnnxModel,
    PaddedModel,
    encoder_alone,
    export_onnx,
    is_of_tokens,
    output_names,
    outputs_of,
)
from tests.bert_core.batches import ragged_batch, small_config
from tests.bert_core.test_backends import HEAD_SETTINGS, new_model

HEADS = ("encoder", *HEAD_SETTINGS, "sentence_embedding")
OTHER_BATCHES = ((64, 3, 17), (1,), (2, 2), (5, 64, 40, 9, 1, 30, 12))  # than the traced 2 of 8


def model_with(head):
    if head in HEAD_SETTINGS:
        return new_model(head).eval()
    torch.manual_seed(0)
    model = build_model(head, small_config()).eval()
    model.embedding = EmbeddingConfig()
    return model


def padded_inputs(tokens, model):
    values = (tokens.input_ids, torch.ones_like(tokens.input_ids), tokens.token_type_ids)
    rows = [tokens.padded(each, 0) for each in values]
    return [each[None] for each in rows] if model.head_name == "multiple_choice" else rows


def assert_padding_counts_for_nothing(model, lengths):
    tokens = ragged_batch(lengths)
    with torch.inference_mode():
        expected = outputs_of(model, tokens)
        found = PaddedModel(model)(*padded_inputs(tokens, model))
    assert tuple(expected) == output_names(model)
    for values, (name, ours) in zip(found, expected.items(), strict=True):
        if is_of_tokens(model, name):
            values = values.flatten(0, 1)[tokens.padded_positions]
        torch.testing.assert_close(values.reshape(ours.shape), ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_a_padded_batch_gives_what_a_ragged_one_gives(head):
    for lengths in OTHER_BATCHES:
        assert_padding_counts_for_nothing(model_with(head), lengths)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_so_do_all_poolings(pooling, normalize):
    model = model_with("encoder")
    model.embedding = EmbeddingConfig(pooling=pooling, normalize=normalize)
    assert_padding_counts_for_nothing(model, OTHER_BATCHES[0])


def test_a_head_over_the_mean_reads_no_padding():
    model = model_with("sequence_classification")
    model.drop_pooler()
    assert_padding_counts_for_nothing(model, OTHER_BATCHES[0])


def exported(model, path):
    pytest.importorskip("onnxscript", reason="pip install 'bertsmith[onnx]'")
    pytest.importorskip("onnxruntime", reason="pip install 'bertsmith[onnx]'")
    export_onnx(model, path)
    return OnnxModel(path, model, num_threads=1)


def assert_same(onnx):
    compared = onnx.compare(map(ragged_batch, OTHER_BATCHES))
    assert 0 < compared.difference <= 1e-5 * compared.magnitude


def test_onnx_runtime_answers_batches_of_any_size(tmp_path):
    onnx = exported(model_with("encoder"), tmp_path / "model.onnx")
    assert_same(onnx)
    inputs = onnx.session.get_inputs()
    assert [each.name for each in inputs] == list(INPUTS)
    assert [each.shape for each in inputs] == [["batch_size", "sequence_length"]] * 3
    onnx.model.encoder.embeddings.layer_norm.bias.data += 0.5
    # Another model's answers are told apart.
    assert onnx.compare([ragged_batch()]).difference > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("head", [*HEAD_SETTINGS, "sentence_embedding"])
def test_so_does_it_for_every_head(head, tmp_path):
    assert_same(exported(model_with(head), tmp_path / "model.onnx"))


@pytest.mark.slow
def test_sinusoids_and_a_head_over_the_mean_are_written_too(tmp_path):
    model = new_model("sequence_classification", positions="sinusoidal", num_layers=1).eval()
    model.drop_pooler()
    assert_same(exported(model, tmp_path / "model.onnx"))


def test_the_encoder_alone_shares_its_weights():
    model = model_with("sequence_classification")
    alone = encoder_alone(model, "mean")
    assert alone.encoder is model.encoder
    assert output_names(alone) == ("last_hidden_state", "sentence_embedding")
    assert_padding_counts_for_nothing(alone, OTHER_BATCHES[0])


def test_more_weights_than_a_file_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_core.onnx.MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="an ONNX file holds at most 2 GiB of weights"):
        export_onnx(model_with("encoder"), tmp_path / "model.onnx")


def test_a_head_without_outputs_is_refused():
    class Unknown(Model):
        head_name = "unknown"

    with pytest.raises(ValueError, match="an unknown model cannot be written as ONNX"):
        PaddedModel(Unknown(small_config()))
    with pytest.raises(ValueError, match="pooling must be mean or cls, got 'median'"):
        encoder_alone(model_with("encoder"), "median")


def test_rows_of_padding_alone_harm_no_others():
    model, tokens = model_with("encoder"), ragged_batch((9, 4))
    rows = [torch.cat((each, torch.zeros_like(each[:1]))) for each in padded_inputs(tokens, model)]
    with torch.inference_mode():
        hidden, vectors = PaddedModel(model)(*rows)
        expected = outputs_of(model, tokens)
    np.testing.assert_allclose(vectors[:2], expected["sentence_embedding"], atol=1e-5)
    assert hidden[:2].isfinite().all()
