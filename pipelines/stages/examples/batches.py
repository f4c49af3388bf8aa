"""Reading examples back: from (seed, step) straight to this rank's micro-batches.

The examples of an epoch are one pass of the examples stage, shuffled by a permutation that can be
evaluated anywhere; epochs take the passes in turn. The global stream is epoch after epoch: step s
consumes its examples [s * B, (s + 1) * B), cut into micro-batches, and rank r of W takes the
micro-batches r, r + W, ... So neither the examples of a step nor their masks depend on W.
"""

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.batch import Batch, LabelledBatch, PretrainingBatch, RaggedBatch, next_token_labels
from bert_core.masking import MaskableVocabulary, MaskingConfig, mask_tokens
from bert_core.randomness import Bits, Permutation, random_bits
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.shards import VOCABULARY_FILES, lists_in, read_example_batch
from pipelines.store import Artifact

if TYPE_CHECKING:  # a verification reads examples without the training loop
    from bert_core.training.loop import MicroBatches

_STEPS_AHEAD = 2
_THREADS = 4  # that fetch shards of a remote store


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Some examples, one after the other."""

    input_ids: NDArray[Any]  # [T] what a model sees: masked where the shards carry masks
    lengths: NDArray[np.int64]  # [B]
    segment_b_start: NDArray[np.int64]  # [B]
    is_random_next: NDArray[np.bool_] | None  # [B]
    masked_positions: NDArray[np.int64] | None  # [M] into the T tokens
    masked_ids: NDArray[np.int64] | None  # [M]


class ExampleReader:
    """One set of the examples of an artifact: `train`, `short` or `heldout`.

    A shard is opened, and fetched from a remote store, when an example of it is first read. As the
    order is random, the first steps of a pass fetch all of it; `prefetched` reads them while the
    model computes.
    """

    def __init__(self, examples: Artifact, split: ExampleSet) -> None:
        self.split = split
        self.settings = ExampleSettings.model_validate(examples.manifest.settings)
        self.max_tokens = self.settings.max_tokens_of(split)
        self.vocab_size: int = examples.statistics["vocab_size"]
        self.has_pairs = self.settings.objective == "mlm_nsp"
        self.has_static_masks = self.settings.has_static_masks(split)
        by_pass: dict[str, list[str]] = {}
        for name in examples.names(f"{split}-"):
            by_pass.setdefault(name.split("-")[1], []).append(name)
        self._passes = [by_pass[number] for number in sorted(by_pass)]
        files = examples.manifest.files
        sizes = [[files[name].figures["examples"] for name in names] for names in self._passes]
        # Of each pass: examples before each shard, and in all.
        self._edges = [np.cumsum([0, *each]) for each in sizes]
        self._open: dict[str, _Shard] = {}
        self._examples = examples

    def __len__(self) -> int:
        """Examples of all passes."""
        return sum(self.pass_sizes)

    @property
    def pass_sizes(self) -> list[int]:
        """Examples of each pass."""
        return [int(edges[-1]) for edges in self._edges]

    @property
    def num_tokens(self) -> int:
        """Tokens of all passes, special ones included."""
        files = self._examples.manifest.files
        return sum(files[name].figures["tokens"] for names in self._passes for name in names)

    @cached_property
    def maskable(self) -> MaskableVocabulary:
        """What masking has to know of the vocabulary that the examples are written in."""
        with tempfile.TemporaryDirectory() as folder:
            for name in VOCABULARY_FILES:
                (Path(folder) / name).write_bytes(self._examples.local(name).read_bytes())
            return WordPieceTokenizer.from_directory(folder).maskable()

    def rows(self, groups: Sequence[tuple[int, NDArray[np.int64]]]) -> Rows:
        """The examples of each group, a pass and indices, one group after the other."""
        names: list[str] = []
        offsets: list[int] = []
        for pass_number, indices in groups:
            edges = self._edges[pass_number]
            number = np.searchsorted(edges, indices, side="right") - 1
            names += [self._passes[pass_number][each] for each in number.tolist()]
            offsets += (indices - edges[number]).tolist()
        places = list(zip(self._open_all(names), offsets, strict=True))
        input_ids, lengths = _joined([shard.input_ids.row(row) for shard, row in places])
        positions = masked_ids = is_random = None
        if self.has_pairs:
            is_random = np.array([shard.is_random_next(row) for shard, row in places])
        if self.has_static_masks:
            starts = np.cumsum(lengths) - lengths
            masked, counts = _joined([shard.masked_positions.row(row) for shard, row in places])
            masked = masked + np.repeat(starts, counts)
            replaced, counts = _joined([shard.replaced_positions.row(row) for shard, row in places])
            replaced = replaced + np.repeat(starts, counts)
            positions = np.sort(np.concatenate([masked, replaced]))
            masked_ids = input_ids[positions].astype(np.int64)
            input_ids[masked] = self.maskable.mask_id
            input_ids[replaced], _ = _joined([shard.replacements.row(row) for shard, row in places])
        return Rows(
            input_ids=input_ids,
            lengths=lengths,
            segment_b_start=np.array([shard.segment_b_start[row] for shard, row in places], int),
            is_random_next=is_random,
            masked_positions=positions,
            masked_ids=masked_ids,
        )

    def _open_all(self, names: list[str]) -> list["_Shard"]:
        """The shards of these names; what a remote store holds is fetched several at a time."""
        missing = [name for name in dict.fromkeys(names) if name not in self._open]
        with ThreadPoolExecutor(1 if self._examples.is_local else _THREADS) as pool:
            shards = pool.map(lambda name: _Shard(self._examples.local(name)), missing)
            self._open.update(zip(missing, shards, strict=True))
        return [self._open[name] for name in names]


class _Shard:
    """One memory-mapped file."""

    def __init__(self, path: Path) -> None:
        batch = read_example_batch(path)
        (self.input_ids,) = lists_in(batch, "input_ids")
        self.segment_b_start = batch.column("segment_b_start").to_numpy()
        self._pair_bits = np.frombuffer(batch.column("is_random_next").buffers()[1], np.uint8)
        if "masked_positions" in batch.schema.names:
            (self.masked_positions,) = lists_in(batch, "masked_positions")
            self.replaced_positions, self.replacements = lists_in(batch, "replaced")

    def is_random_next(self, row: int) -> bool:
        return bool(self._pair_bits[row >> 3] >> (row & 7) & 1)


def _joined(rows: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))


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
        yield number, _batch(reader, reader.rows([(0, indices)]), keys)


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
            for number in range(step, min(step + _STEPS_AHEAD + 1, num_steps)):
                if number not in ahead:
                    ahead[number] = thread.submit(read, number)
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
    return _batch(reader, reader.rows(groups), np.concatenate(keys), masking)


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
            config=masking or reader.settings.masking_config(),
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
