"""Computing in a precision nests, and each thread has its own."""

import threading

import pytest
import torch

from bert_core.batch import LabelledBatch, next_token_labels
from bert_core.training.loop import evaluate
from tests.bert_core.batches import pretraining_batch, ragged_batch
from tests.bert_core.test_hugging_face import HEADS, new_model

TOKENS = ragged_batch()


def hidden_states(model):
    with torch.no_grad():
        return model.encoder(TOKENS)


def test_leaving_a_block_restores_the_one_around_it():
    model, other = new_model("encoder"), new_model("encoder")
    plain = hidden_states(model)
    with model.inference("bf16"):
        low = hidden_states(model)
        assert low.dtype == torch.bfloat16
        with model.inference("float32"):
            assert torch.equal(hidden_states(model), plain)
            with other.inference("bf16"):  # of the thread, whichever model opens it
                assert torch.equal(hidden_states(model), low)
                assert torch.equal(hidden_states(other), low)
        assert torch.equal(hidden_states(model), low)
        with pytest.raises(KeyError), model.inference("float32"):
            raise KeyError
        assert torch.equal(hidden_states(model), low)
    assert torch.equal(hidden_states(model), plain)


def test_two_threads_compute_with_one_model_each_in_its_own_precision():
    model = new_model("encoder")
    expected = {"float32": hidden_states(model)}
    with model.inference("bf16"):
        expected["bf16"] = hidden_states(model)
    both_inside, differences = threading.Barrier(2), []

    def work(precision):
        for _ in range(20):
            with model.inference(precision):
                both_inside.wait()
                result = hidden_states(model)
                both_inside.wait()
            if result.dtype != expected[precision].dtype or (result != expected[precision]).any():
                differences.append(precision)

    threads = [threading.Thread(target=work, args=(precision,)) for precision in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differences == []


def batch_for(head):
    if head == "pretraining":
        return pretraining_batch()
    num_sequences, num_tokens = TOKENS.num_sequences, TOKENS.num_tokens
    labels = {
        "language_model": next_token_labels(TOKENS),
        "next_sentence": torch.arange(num_sequences) % 2,
        "sequence_classification": torch.arange(num_sequences) % 3,
        "multi_label_classification": torch.arange(3 * num_sequences).view(-1, 3) % 2 == 0,
        "regression": torch.linspace(0, 1, num_sequences),
        "multiple_choice": torch.tensor([2, 0]),
        "token_classification": torch.arange(num_tokens) % 5,
        "span_prediction": torch.tensor([[0, 1]] * num_sequences),
    }[head]
    return LabelledBatch.from_arrays(TOKENS, labels)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "encoder"])
def test_an_evaluation_in_bfloat16_is_near_that_in_float32(head):
    model, batch = new_model(head), batch_for(head)
    exact = evaluate(model, [batch])
    assert set(exact) == set(model.figure_names) == set(model.evaluation_sums(batch))
    by_hand = model.evaluation_sums(batch)
    for name, value in exact.items():
        assert value == pytest.approx(by_hand[name].total.item() / by_hand[name].num_items)
    low = evaluate(model, [batch], precision="bf16")
    assert low != exact
    for name in exact:
        if name.endswith("_loss"):
            assert low[name] == pytest.approx(exact[name], rel=0.02, abs=0.01)
        else:
            assert low[name] == pytest.approx(exact[name], abs=0.2)
