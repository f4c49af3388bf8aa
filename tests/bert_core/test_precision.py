"""Computing in a precision nests, and each thread has its own."""

import threading

import pytest
import torch

from bert_core.backends.context import computing
from bert_core.batch import LabelledBatch, next_token_labels
from bert_core.inference.answers import classify
from bert_core.inference.pretrained import attention_maps, complete, embed, fill_mask
from bert_core.model.catalogue import build_model
from bert_core.training.loop import evaluate, optimizer_step
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import pretraining_batch, ragged_batch, small_config
from tests.bert_core.test_hugging_face import HEADS, new_model, tokenizer

TOKENS = ragged_batch()


def hidden_states(model):
    with torch.no_grad():
        return model.encoder(TOKENS)


def test_leaving_a_block_restores_the_one_around_it():
    model, other = new_model("encoder"), new_model("encoder")
    plain = hidden_states(model)
    with model.precision("bf16"):
        low = hidden_states(model)
        assert low.dtype == torch.bfloat16
        with model.precision("float32"):
            assert torch.equal(hidden_states(model), plain)
            with other.precision("bf16"):  # of the thread, whichever model opens it
                assert torch.equal(hidden_states(model), low)
                assert torch.equal(hidden_states(other), low)
        assert torch.equal(hidden_states(model), low)
        with pytest.raises(KeyError), model.precision("float32"):
            raise KeyError
        assert torch.equal(hidden_states(model), low)
    assert torch.equal(hidden_states(model), plain)


def test_two_threads_compute_with_one_model_each_in_its_own_precision():
    model = new_model("encoder")
    expected = {"float32": hidden_states(model)}
    with model.precision("bf16"):
        expected["bf16"] = hidden_states(model)
    both_inside, differences = threading.Barrier(2), []

    def work(precision):
        for _ in range(20):
            with model.precision(precision):
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


def test_gradients_inside_a_block_without_an_optimizer_reach_the_parameters():
    model = new_model("pretraining")
    batch = pretraining_batch()
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        model.zero_grad()
        with computing(dtype):
            sums = model.loss_sums(batch)
        (sums["mlm"].total + sums["nsp"].total).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.999


def test_evaluating_within_a_training_step_s_block_leaves_its_gradients_alone():
    model = new_model("pretraining")
    optimizer = AdamW(model, OptimizationConfig(num_steps=1))
    optimizer_step(model, optimizer, [(0, pretraining_batch())], seed=0, step=0)
    gradients = optimizer.arena.gradients.clone()
    with optimizer.arena.computing(torch.bfloat16), model.precision("float32"):
        model.loss_sums(pretraining_batch())["mlm"].total.backward()
    own = _own_gradients(pretraining_batch(), optimizer)
    assert torch.equal(optimizer.arena.gradients, gradients + own)


def _own_gradients(batch, optimizer):
    """The gradients of the same loss for the same weights, in the arena's layout."""
    twin = new_model("pretraining")
    layout = AdamW(twin, OptimizationConfig(num_steps=1)).arena
    layout.values.copy_(optimizer.arena.values)
    twin.loss_sums(batch)["mlm"].total.backward()
    return layout.gradients


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


def test_answers_in_bfloat16_are_near_those_in_float32():
    words = tokenizer()

    def ask(precision):
        size = {"vocab_size": words.vocab_size}
        model = build_model("sequence_classification", small_config(**size), num_labels=3)
        yield classify(model, words, ["a b", "c"], precision=precision).probabilities
        encoder = build_model("encoder", small_config(**size))
        yield embed(encoder, words, ["a b", "c"], precision=precision).vectors
        yield attention_maps(encoder, words, "a b c", precision=precision).probabilities
        pretrained = build_model("pretraining", small_config(**size))
        (candidates,) = fill_mask(
            pretrained, words, "a [MASK] c", top_k=words.vocab_size, precision=precision
        )
        yield [c.probability for c in sorted(candidates, key=lambda c: c.token)]

    torch.manual_seed(0)
    exact = list(ask("float32"))
    torch.manual_seed(0)
    low = list(ask("bf16"))
    for near, value in zip(low, exact, strict=True):
        near, value = torch.as_tensor(near), torch.as_tensor(value)
        assert not torch.equal(near, value)
        torch.testing.assert_close(near, value, atol=0.02, rtol=0)


def test_a_precision_there_is_not_is_refused():
    model = new_model("language_model")
    with pytest.raises(ValueError, match="precision must be auto, bf16 or float32, got 'fp8'"):
        complete(model, [2], end_id=3, precision="fp8")
