"""What a step computes does not depend on how its examples are cut up and spread."""

import pytest
import torch

from bert_core.backends.context import compute_dtype
from bert_core.batch import PretrainingBatch, RaggedBatch
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import evaluate, gradient_norm, optimizer_step
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.ranks import run_ranks

LENGTHS = (3, 17, 64, 5, 64, 29, 12, 40)


def new_model():
    torch.manual_seed(0)
    model = PretrainingModel(small_config(hidden_dropout=0.0, attention_dropout=0.0))
    return model, AdamW(model, OptimizationConfig(num_steps=10, learning_rate=1e-3))


def part(batch, first, last):
    """Sequences `first` to `last` - 1 as a batch of their own."""
    begin, end = int(batch.tokens.cu_seqlens[first]), int(batch.tokens.cu_seqlens[last])
    lengths = batch.tokens.lengths[first:last]
    starts = [
        int((types == 0).sum()) for types in batch.tokens.token_type_ids[begin:end].split(lengths)
    ]
    inside = (batch.masked_positions >= begin) & (batch.masked_positions < end)
    return PretrainingBatch(
        tokens=RaggedBatch.from_arrays(batch.tokens.input_ids[begin:end], starts, lengths),
        masked_positions=batch.masked_positions[inside] - begin,
        masked_labels=batch.masked_labels[inside],
        next_sentence_labels=batch.next_sentence_labels[first:last],
    )


def take_step(micro_batches, dtype=torch.float32):
    model, optimizer = new_model()
    report = optimizer_step(model, optimizer, micro_batches, seed=0, step=0, dtype=dtype)
    return report, optimizer.arena.gradients.clone(), optimizer.arena.values.clone()


def test_micro_batches_add_up_to_the_whole_batch_whatever_their_sizes():
    batch = pretraining_batch(LENGTHS)
    whole, gradients, values = take_step([(0, batch)])
    cuts = [(0, part(batch, 0, 1)), (1, part(batch, 1, 6)), (2, part(batch, 6, 8))]
    pieces, piece_gradients, piece_values = take_step(cuts)
    for name, loss in whole.losses.items():
        assert pieces.losses[name].item() == pytest.approx(loss.item(), rel=1e-6)
    assert pieces.num_tokens == whole.num_tokens == sum(LENGTHS)
    torch.testing.assert_close(piece_gradients, gradients, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(piece_values, values, atol=1e-4, rtol=0)


def share_of(rank):
    batch = pretraining_batch(LENGTHS)
    # The second rank has more sequences; the third has nothing to do.
    shares = {0: [(0, part(batch, 0, 2))], 1: [(1, part(batch, 2, 8))], 2: []}
    report, _, values = take_step(shares[rank])
    figures = [float(loss) for loss in report.losses.values()]
    return figures, int(report.num_tokens), values.tolist()


def test_ranks_with_unequal_shares_take_the_same_update_as_one_process():
    batch = pretraining_batch(LENGTHS)
    report, _, values = take_step([(0, batch)])
    ranks = run_ranks(share_of, 3)
    for figures, num_tokens, rank_values in ranks:
        assert figures == pytest.approx([float(loss) for loss in report.losses.values()], rel=1e-5)
        assert num_tokens == sum(LENGTHS)
        torch.testing.assert_close(torch.tensor(rank_values), values, atol=1e-4, rtol=0)
    assert ranks[0][2] == ranks[1][2] == ranks[2][2]


def test_means_over_batches_are_means_over_items():
    batch = pretraining_batch(LENGTHS)
    model, _ = new_model()
    parts = [part(batch, first, last) for first, last in ((0, 3), (3, 8))]
    assert evaluate(model, parts) == pytest.approx(evaluate(model, [batch]), rel=1e-6)
    with pytest.raises(ValueError, match="nothing to average"):
        evaluate(model, [])


def test_precision_is_what_was_asked_for_or_what_the_machine_has():
    assert compute_dtype("float32", "cpu") == torch.float32
    assert compute_dtype("bf16", "cpu") == torch.bfloat16
    assert compute_dtype("auto", "cpu") in (torch.float32, torch.bfloat16)
    with pytest.raises(ValueError, match="auto, bf16 or float32, got 'fp16'"):
        compute_dtype("fp16", "cpu")


def test_the_norm_of_a_large_buffer_is_exact_and_that_of_a_small_one_as_it_was():
    gradients = torch.randn(1 << 25, generator=torch.Generator().manual_seed(0))
    exact = gradients.double().norm().item()
    assert gradient_norm(gradients).item() == pytest.approx(exact, rel=2e-5)
    small = gradients[:123_456]
    assert torch.equal(gradient_norm(small), torch.linalg.vector_norm(small))
