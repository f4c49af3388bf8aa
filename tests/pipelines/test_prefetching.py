"""Batches read ahead in a thread: the same ones, and nothing left behind."""

import threading
import time

import pytest
import torch

from bert_core.batch import PretrainingBatch
from pipelines.stages.examples.batches import (
    ExampleReader,
    micro_batches,
    prefetched,
)


@pytest.fixture(scope="module")
def reader(small_examples) -> ExampleReader:
    return ExampleReader(small_examples, "train")


def equal(first: PretrainingBatch, second: PretrainingBatch) -> bool:
    return (
        torch.equal(first.tokens.input_ids, second.tokens.input_ids)
        and torch.equal(first.masked_positions, second.masked_positions)
        and torch.equal(first.masked_labels, second.masked_labels)
    )


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
