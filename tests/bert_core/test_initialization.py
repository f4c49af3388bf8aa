"""A model starts from another one's encoder, in memory or in a folder, of its size or resized."""

import pytest
import torch

from bert_core.config import EmbeddingConfig
from bert_core.model.catalogue import EncoderModel, SequenceClassifier, build_model
from bert_core.model.preparation import resize_positions, resize_vocabulary
from bert_core.training.state import load_encoder_into, load_model, save_model
from tests.bert_core.batches import ragged_batch, small_config
from tests.bert_core.test_hugging_face import assert_same_model, new_model
from tests.bert_core.test_loop import new_run


def new_classifier(**overrides):
    torch.manual_seed(7)
    return SequenceClassifier(small_config(**overrides), 2)


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_task_model_starts_from_a_pretrained_encoder(tmp_path, place):
    pretrained = new_model("pretraining")
    save_model(tmp_path / "pretrained", pretrained)
    model = new_classifier(hidden_dropout=0.3)
    new = load_encoder_into(model, pretrained if place == "memory" else tmp_path / "pretrained")
    ours, theirs = model.state_dict(), pretrained.state_dict()
    assert new == ("task_head.dense.bias", "task_head.dense.weight")
    assert all(torch.equal(ours[name], theirs[name]) for name in set(ours) - set(new))
    # A copy: what is trained from here on is the model alone.
    with torch.no_grad():
        model.encoder.embeddings.token.add_(1)
    assert not torch.equal(ours["encoder.embeddings.token"], theirs["encoder.embeddings.token"])


def test_a_model_without_a_pooler_leaves_that_of_the_other_as_it_was():
    model = new_classifier()
    before = model.pooler.dense.weight.clone()
    source = EncoderModel(small_config(), pooler=False)
    assert "pooler.dense.weight" in load_encoder_into(model, source)
    assert torch.equal(model.pooler.dense.weight, before)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_pretraining_goes_on_with_the_heads_that_both_have(next_sentence):
    source = new_model("pretraining")
    torch.manual_seed(7)
    model = build_model("pretraining", small_config(), next_sentence=next_sentence)
    assert not load_encoder_into(model, source)
    theirs = source.state_dict()
    assert all(torch.equal(values, theirs[name]) for name, values in model.state_dict().items())
    # Where the other has no such head, it stays as it was.
    new = load_encoder_into(build_model("pretraining", small_config()), new_model("encoder"))
    assert "vocabulary_head.bias" in new


def test_an_encoder_of_another_build_is_refused_and_told_how_to_fit(tmp_path):
    source = new_model("pretraining")
    save_model(tmp_path / "model", source)
    for place, name in ((source, "the pretraining model"), (tmp_path / "model", "/model")):
        with pytest.raises(ValueError, match=rf"{name} holds .*num_layers 2 instead of 3$"):
            load_encoder_into(new_classifier(num_layers=3), place)
        with pytest.raises(ValueError, match="64 instead of 32; resize_positions and"):
            load_encoder_into(new_classifier(max_position_embeddings=32), place)


@pytest.mark.parametrize("num_positions", [29, 64, 150])
def test_a_resized_model_reads_what_fits_as_before(tmp_path, num_positions):
    model = new_model("encoder")
    tokens = ragged_batch((29, 3, 17))
    before = model(tokens)
    resize_positions(model, num_positions)
    assert torch.equal(model(tokens), before)
    model(ragged_batch((num_positions,)))
    with pytest.raises(ValueError, match=f"at most {num_positions} tokens"):
        model(ragged_batch((num_positions + 1,)))
    save_model(tmp_path / "resized", model)
    assert_same_model(load_model(tmp_path / "resized"), model)


def test_vectors_are_made_of_no_more_tokens_than_are_left():
    model = new_model("encoder")
    model.embedding = EmbeddingConfig(max_tokens=48)
    resize_positions(model, 64)
    assert model.embedding.max_tokens == 48
    resize_positions(model, 32)
    assert model.embedding.max_tokens == 32


def test_new_positions_repeat_the_old():
    model = new_model("encoder")
    old = model.encoder.embeddings.position.detach().clone()
    resize_positions(model, 150)
    assert torch.equal(model.encoder.embeddings.position, torch.cat((old, old, old))[:150])


def test_added_words_start_as_the_mean_and_are_predicted_too(tmp_path):
    model = new_model("pretraining")
    with torch.no_grad():
        model.vocabulary_head.bias.normal_()
    table = model.encoder.embeddings.token.detach().clone()
    bias = model.vocabulary_head.bias.detach().clone()
    before, _ = model(ragged_batch(), torch.arange(5))
    resize_vocabulary(model, 130)
    after, _ = model(ragged_batch(), torch.arange(5))
    assert after.shape == (5, 130)
    torch.testing.assert_close(after[:, :120], before)
    torch.testing.assert_close(after[:, 120:], before.mean(dim=1, keepdim=True).expand(-1, 10))
    torch.testing.assert_close(model.encoder.embeddings.token[120:], table.mean(0).expand(10, -1))
    torch.testing.assert_close(model.vocabulary_head.bias[120:], bias.mean().expand(10))
    model(ragged_batch(vocab_size=130), torch.arange(5))
    save_model(tmp_path / "resized", model)
    assert_same_model(load_model(tmp_path / "resized"), model)
    resize_vocabulary(model, 120)
    assert torch.equal(model.encoder.embeddings.token, table)
    assert torch.equal(model.vocabulary_head.bias, bias)


def test_what_is_frozen_stays_frozen_and_an_optimizer_forbids_resizing():
    model = new_classifier()
    model.encoder.requires_grad_(False)
    resize_positions(model, 80)
    resize_vocabulary(model, 130)
    assert not model.encoder.embeddings.position.requires_grad
    assert not model.encoder.embeddings.token.requires_grad
    trained, _ = new_run()
    for resize in (resize_positions, resize_vocabulary):
        with pytest.raises(ValueError, match="its optimizer was built already"):
            resize(trained, 80)


def test_impossible_sizes_are_refused():
    model = new_classifier()
    for resize in (resize_positions, resize_vocabulary):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            resize(model, 0)
