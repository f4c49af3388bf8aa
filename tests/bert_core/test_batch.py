"""Ragged batches, and what they refuse."""

import pytest
import torch

from bert_core.batch import IGNORED_LABEL, LabelledBatch, RaggedBatch, next_token_labels
from bert_core.model.catalogue import EncoderModel, LanguageModel, SequenceClassifier, build_model
from tests.bert_core.batches import pretraining_batch, ragged_batch, small_config


def test_positions_and_segments_start_anew_in_every_sequence():
    batch = RaggedBatch.from_arrays([7, 8, 9, 5, 6], [2, 2], [3, 2])
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert batch.token_type_ids.tolist() == [0, 0, 1, 0, 0]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.cu_seqlens.dtype == torch.int32
    assert (batch.num_sequences, batch.num_tokens, batch.max_seqlen) == (2, 5, 3)
    listed = RaggedBatch.from_sequences([[7, 8, 9], [5, 6]], [2, 2])
    assert torch.equal(listed.token_type_ids, batch.token_type_ids)


@pytest.mark.parametrize(
    ("ids", "starts", "lengths", "message"),
    [
        ([], None, [], r"at least one token, got lengths \[\]"),
        ([1, 2], None, [2, 0], r"at least one token, got lengths \[2, 0\]"),
        ([1, 2], None, [3], "got 3 and input ids of shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(ids, starts, lengths, message):
    with pytest.raises(ValueError, match=message):
        RaggedBatch.from_arrays(ids, starts, lengths)


def test_the_next_token_is_the_label_and_the_last_has_none():
    tokens = RaggedBatch.from_sequences([[7, 8, 9], [5, 6]])
    assert next_token_labels(tokens).tolist() == [8, 9, IGNORED_LABEL, 6, IGNORED_LABEL]


def test_one_boolean_a_text_is_the_number_of_its_class():
    tokens = ragged_batch((3, 2))
    batch = LabelledBatch.from_arrays(tokens, [True, False])
    assert batch.labels.dtype == torch.int64
    assert batch.counts == {"label": 2}
    model = SequenceClassifier(small_config(), 2)
    assert model.loss_sums(batch)["label"].total.isfinite()


def test_labels_are_counted_on_the_host():
    tokens = ragged_batch((3, 2))
    labels = [1, IGNORED_LABEL, 2, IGNORED_LABEL, IGNORED_LABEL]
    assert LabelledBatch.from_arrays(tokens, labels).counts == {"label": 2}
    assert pretraining_batch().counts == {"mlm": 30, "nsp": 6}


def test_a_sequence_of_any_batch_gets_the_hidden_states_it_gets_alone():
    torch.manual_seed(0)
    model = EncoderModel(small_config())
    tokens = ragged_batch()
    together = model(tokens).split(tokens.lengths)
    parts = zip(
        tokens.input_ids.split(tokens.lengths),
        tokens.token_type_ids.split(tokens.lengths),
        together,
        strict=True,
    )
    for ids, types, hidden in parts:
        alone = model(RaggedBatch.from_sequences([ids.tolist()], [int((types == 0).sum())]))
        torch.testing.assert_close(alone, hidden, atol=1e-5, rtol=0)


def test_too_long_sequences_and_ids_outside_the_vocabulary_are_refused():
    model = EncoderModel(small_config())
    with pytest.raises(ValueError, match="at most 64 tokens, got 65"):
        model(ragged_batch((65,)))
    for bad in (120, -1):
        with pytest.raises(ValueError, match=rf"input_ids must lie in \[0, 120\), got {bad}"):
            model(RaggedBatch.from_sequences([[5, bad]]))


def test_models_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="needs a causal encoder"):
        LanguageModel(small_config())
    with pytest.raises(ValueError, match="labels must be 2 different names, got 1"):
        SequenceClassifier(small_config(), 2, ["only"])
    with pytest.raises(ValueError, match="head must be one of encoder, pretraining"):
        build_model("regresion", small_config())
