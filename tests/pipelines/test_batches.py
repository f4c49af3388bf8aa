"""Reading examples back: the same batches for any number of workers, from any step on."""

import threading
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from bert_core.batch import LabelledBatch, PretrainingBatch
from pipelines.stages.examples.batches import (
    ExampleReader,
    epoch_of,
    evaluation_batches,
    micro_batches,
    num_evaluation_batches,
    prefetched,
)
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import load_tokenizer


@pytest.fixture(scope="module")
def reader(small_examples) -> ExampleReader:
    return ExampleReader(small_examples, "train")


def build(small_corpus, small_vocabulary, small_context, **settings):
    chosen = ExampleSettings(**{"max_tokens": 64, "shard_tokens": 1000, **settings})
    return build_examples(chosen, small_corpus, small_vocabulary, small_context)


def step_of(reader, step: int, rank: int = 0, world_size: int = 1, seed: int = 0):
    return dict(
        micro_batches(
            reader,
            seed=seed,
            step=step,
            global_batch_size=20,
            micro_batch_size=6,
            rank=rank,
            world_size=world_size,
        )
    )


def equal(first: PretrainingBatch, second: PretrainingBatch) -> bool:
    return (
        torch.equal(first.tokens.input_ids, second.tokens.input_ids)
        and torch.equal(first.masked_positions, second.masked_positions)
        and torch.equal(first.masked_labels, second.masked_labels)
    )


def masks_of_rows(batch: PretrainingBatch) -> dict[tuple[int, ...], tuple[int, ...]]:
    """By the text of each example, which of its positions are masked."""
    ids = batch.tokens.input_ids.clone()
    ids[batch.masked_positions] = batch.masked_labels
    masks = {}
    for begin, end in pairwise(batch.tokens.cu_seqlens.tolist()):
        positions = batch.masked_positions - begin
        inside = (positions >= 0) & (positions < end - begin)
        masks[tuple(ids[begin:end].tolist())] = tuple(positions[inside].tolist())
    return masks


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_micro_batches_of_a_step_do_not_depend_on_the_number_of_workers(reader, world_size):
    alone = step_of(reader, 7)
    assert sorted(alone) == [0, 1, 2, 3]
    assert [batch.tokens.num_sequences for batch in alone.values()] == [6, 6, 6, 2]
    shared = {}
    for rank in range(world_size):
        of_rank = step_of(reader, 7, rank, world_size)
        assert not set(of_rank) & set(shared)
        shared.update(of_rank)
    assert set(shared) == set(alone)
    assert all(equal(alone[number], shared[number]) for number in alone)


def epochs_of(reader: ExampleReader) -> list[PretrainingBatch]:
    """The first two epochs, a batch each."""
    size = len(reader)
    batches = micro_batches(
        reader, seed=0, step=0, global_batch_size=2 * size, micro_batch_size=size
    )
    return [batch for _, batch in batches]


def test_an_epoch_sees_each_example_once_in_another_order_with_fresh_masks(reader):
    first, second = map(masks_of_rows, epochs_of(reader))
    assert len(first) == len(reader)
    assert sorted(first) == sorted(second)
    assert list(first) != list(second)
    assert sum(first[row] == second[row] for row in first) < len(reader) / 10
    assert not equal(step_of(reader, 3)[0], step_of(reader, 3, seed=1)[0])


def test_passes_take_turns_as_epochs(small_corpus, small_vocabulary, small_context):
    examples = build(small_corpus, small_vocabulary, small_context, num_passes=2)
    reader = ExampleReader(examples, "train")
    first, second = reader.pass_sizes
    assert len(reader) == first + second
    assert epoch_of(reader, 0) == (0, 0)
    assert epoch_of(reader, first) == (1, 0)
    assert epoch_of(reader, first + second + 5) == (2, 5)
    assert epoch_of(reader, 2 * first + second) == (3, 0)
    fresh = [reader.rows([(number, np.arange(5))]).input_ids.tolist() for number in (0, 1)]
    assert fresh[0] != fresh[1]
    assert ExampleReader(examples, "heldout").pass_sizes[0] > 0


def test_held_out_examples_are_one_fixed_set(small_examples):
    reader = ExampleReader(small_examples, "heldout")
    batches = [batch for _, batch in evaluation_batches(reader, 512)]
    again = [batch for _, batch in evaluation_batches(reader, 512)]
    assert all(equal(one, other) for one, other in zip(batches, again, strict=True))
    assert sum(batch.tokens.num_sequences for batch in batches) == len(reader)
    assert max(batch.tokens.num_tokens for batch in batches) <= 512
    masked = sum(batch.masked_labels.numel() for batch in batches)
    assert masked == small_examples.statistics["heldout"]["masked_tokens"]
    few = [batch for _, batch in evaluation_batches(reader, 512, max_examples=3)]
    assert sum(batch.tokens.num_sequences for batch in few) == 3


@pytest.mark.parametrize("world_size", [2, 3, 50])
def test_ranks_divide_the_held_out_batches_among_them(small_examples, world_size):
    reader = ExampleReader(small_examples, "heldout")
    alone = dict(evaluation_batches(reader, 512))
    assert sorted(alone) == list(range(num_evaluation_batches(reader, 512)))
    shares = [
        list(evaluation_batches(reader, 512, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    numbers = [number for share in shares for number, _ in share]
    assert sorted(numbers) == sorted(alone)
    assert all(equal(batch, alone[number]) for share in shares for number, batch in share)


def test_static_masks_are_the_shards_own(small_corpus, small_vocabulary, small_context):
    examples = build(
        small_corpus, small_vocabulary, small_context, masking="static", whole_words=True
    )
    first, second = epochs_of(ExampleReader(examples, "train"))
    mask_id = load_tokenizer(small_vocabulary).mask_id
    is_mask = first.tokens.input_ids[first.masked_positions] == mask_id
    assert is_mask.float().mean() > 0.7
    assert masks_of_rows(first) == masks_of_rows(second)


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_other_objectives_read_back_without_pairs(
    objective, small_corpus, small_vocabulary, small_context
):
    examples = build(small_corpus, small_vocabulary, small_context, objective=objective)
    reader = ExampleReader(examples, "train")
    assert not reader.has_pairs
    batch = step_of(reader, 0)[0]
    if objective == "mlm":
        assert isinstance(batch, PretrainingBatch)
        assert batch.next_sentence_labels is None
        assert not batch.tokens.token_type_ids.any()
    else:
        assert isinstance(batch, LabelledBatch)
        assert batch.num_labels == batch.tokens.num_tokens - batch.tokens.num_sequences


def test_prefetching_changes_nothing_and_ends_with_its_context(reader):
    def batches_of(step):
        return micro_batches(reader, seed=0, step=step, global_batch_size=20, micro_batch_size=6)

    with prefetched(batches_of, 6) as ahead:
        for step in (0, 1, 2, 4, 5):  # one is left out
            for (number, batch), (expected_number, expected) in zip(
                ahead(step), batches_of(step), strict=True
            ):
                assert number == expected_number
                assert equal(batch, expected)
        with pytest.raises(ValueError, match="below num_steps=6"):
            ahead(6)
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_an_error_of_the_reading_is_raised_where_its_step_is_asked_for():
    def batches_of(step):
        if step == 1:
            raise OSError("the disk is gone")
        yield step, None

    with prefetched(batches_of, 10) as ahead:
        assert list(ahead(0)) == [(0, None)]
        time.sleep(0.05)
        with pytest.raises(OSError, match="the disk is gone"):
            ahead(1)
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]
