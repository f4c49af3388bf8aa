"""Reading examples back: from (seed, step) straight to this rank's micro-batches.

The examples of an epoch are one pass of the examples stage, shuffled by a permutation that can be
evaluated anywhere; epochs take the passes in turn. The global stream is epoch after epoch: step s
consumes its examples [s * B, (s + 1) * B), cut into micro-batches, and rank r of W takes the
micro-batches r, r + W, ... So neither the examples of a step nor their masks depend on W.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.batch import Batch, LabelledBatch, PretrainingBatch, next_token_labels
from bert_core.masking import MaskingConfig, mask_tokens
from bert_core.ragged import RaggedBatch
from bert_core.randomness import Bits, Permutation, random_bits
from pipelines.config.errors import UserError
from pipelines.stages.examples.reader import ExampleReader as ExampleReader
from pipelines.stages.examples.reader import Rows

if TYPE_CHECKING:  # a verification reads examples without the training loop
    from bert_core.training.loop import MicroBatches

_STEPS_AHEAD: Final = 2


def micro_batches(
    reader: ExampleReader,
    *,
    seed: int,
    step: int,
    global_batch_size: int,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    masking: MaskingConfig | None = None,
) -> Iterator[tuple[int, Batch]]:
    """This rank's micro-batches of a step, each with its number within the step.

    Masks are drawn from (seed, epoch, index of the example) unless the shards carry their own, at
    the rates of `masking` or, by default, of the examples. A step may reach from one epoch into
    the next.
    """
    if not len(reader):
        raise UserError("there are no examples to train on; check the corpus")
    count = -(-global_batch_size // micro_batch_size)
    for number in range(rank, count, world_size):
        first = step * global_batch_size + number * micro_batch_size
        after = min(first + micro_batch_size, (step + 1) * global_batch_size)
        yield number, _training_batch(reader, seed, first, after, masking)


def epoch_of(reader: ExampleReader, example: int) -> tuple[int, int]:
    """Epoch of an example of the global stream, and its place in that epoch."""
    sizes = reader.pass_sizes
    cycle, place = divmod(example, sum(sizes))
    pass_number = int(np.searchsorted(np.cumsum(sizes), place, side="right"))
    return cycle * len(sizes) + pass_number, place - sum(sizes[:pass_number])


def evaluation_batches(
    reader: ExampleReader,
    batch_tokens: int,
    *,
    max_examples: int | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[tuple[int, Batch]]:
    """This rank's batches of held-out examples, each with its number among those of all ranks.

    The examples come in a fixed random order, at most `max_examples` of the first pass. A batch
    holds at most `batch_tokens` tokens (but at least one example). The masks are those of the
    shards; where there are none, they are drawn from a key of their own and never change.
    """
    count, per_batch = _evaluation_sizes(reader, batch_tokens, max_examples)
    if not count:
        return
    order = Permutation(reader.pass_sizes[0], 0, "order of evaluation")[np.arange(count)]
    for number in range(rank, -(-count // per_batch), world_size):
        indices = order[number * per_batch : (number + 1) * per_batch]
        keys = random_bits(0, "masks of evaluation", indices)
        yield number, _batch(reader, reader.rows(0, indices), keys)


def num_evaluation_batches(
    reader: ExampleReader, batch_tokens: int, *, max_examples: int | None = None
) -> int:
    """How many batches `evaluation_batches` makes, over all ranks."""
    count, per_batch = _evaluation_sizes(reader, batch_tokens, max_examples)
    return -(-count // per_batch)


def _evaluation_sizes(
    reader: ExampleReader, batch_tokens: int, max_examples: int | None
) -> tuple[int, int]:
    size = reader.pass_sizes[0]
    count = size if max_examples is None else min(size, max_examples)
    return count, max(1, batch_tokens // reader.max_tokens)


@contextmanager
def prefetched(batches_of: "MicroBatches", num_steps: int) -> "Iterator[MicroBatches]":
    """The same micro-batches, read ahead in a thread while the model computes.

    Steps are best asked for in order; another one starts again there. Leaving the context
    ends the thread. An error of the reading is raised where its step is asked for.
    """
    ahead: dict[int, Future[list[tuple[int, Batch]]]] = {}
    copies_to_gpu = torch.cuda.is_available()

    def read(step: int) -> list[tuple[int, Batch]]:
        batches = batches_of(step)
        if copies_to_gpu:  # pinned here, so that the training run's thread only starts the copies
            return [(number, batch.moved(Tensor.pin_memory)) for number, batch in batches]
        return list(batches)

    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:

        def micro_batches_of(step: int) -> Iterator[tuple[int, Batch]]:
            if step >= num_steps:
                raise ValueError(f"step must lie below num_steps={num_steps}, got {step}")
            if ahead and step != next(iter(ahead)):
                for waiting in ahead.values():
                    waiting.cancel()
                ahead.clear()
            for wanted in range(step, min(step + _STEPS_AHEAD + 1, num_steps)):
                if wanted not in ahead:
                    ahead[wanted] = thread.submit(read, wanted)
            return iter(ahead.pop(step).result())

        try:
            yield micro_batches_of
        finally:
            thread.shutdown(wait=True, cancel_futures=True)


def _training_batch(
    reader: ExampleReader, seed: int, first: int, after: int, masking: MaskingConfig | None
) -> Batch:
    """The examples [first, after) of the global stream."""
    groups: list[tuple[int, NDArray[np.int64]]] = []  # a step may reach into the next epoch
    keys: list[Bits] = []
    while first < after:
        epoch, place = epoch_of(reader, first)
        pass_number = epoch % len(reader.pass_sizes)
        size = reader.pass_sizes[pass_number]
        count = min(after - first, size - place)
        order = Permutation(size, seed, "order of examples", epoch)
        indices = order[np.arange(place, place + count)]
        groups.append((pass_number, indices))
        keys.append(random_bits(seed, "masking", epoch, indices))
        first += count
    return _batch(reader, reader.rows_of(groups), np.concatenate(keys), masking)


def _batch(
    reader: ExampleReader, rows: Rows, keys: Bits, masking: MaskingConfig | None = None
) -> Batch:
    if reader.settings.objective == "clm":
        tokens = RaggedBatch.from_arrays(rows.input_ids, None, rows.lengths)
        return LabelledBatch.from_arrays(tokens, next_token_labels(tokens))
    input_ids, positions, labels = rows.input_ids, rows.masked_positions, rows.masked_ids
    if positions is None or labels is None:
        masked = mask_tokens(
            rows.input_ids,
            rows.lengths,
            keys,
            config=masking or reader.masking_config,
            vocabulary=reader.maskable,
        )
        input_ids, positions, labels = masked.input_ids, masked.positions, masked.labels
    return PretrainingBatch(
        tokens=RaggedBatch.from_arrays(input_ids, rows.segment_b_start, rows.lengths),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(labels),
        # 0 where B followed A, 1 where it is random, as published.
        next_sentence_labels=None
        if rows.is_random_next is None
        else torch.from_numpy(rows.is_random_next.astype(np.int64)),
    )
