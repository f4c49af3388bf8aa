"""An examples artifact, open for reading: any example of any pass, memory-mapped."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.masking import MaskableVocabulary, MaskingConfig
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact
from pipelines.config.errors import UserError
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.shards import (
    FORMAT_VERSION,
    VOCABULARY_FILES,
    lists_in,
    read_example_batch,
)

_TRIES = 3  # to open a file of the cache
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
    order is random, the first steps of a pass fetch all of it; `batches.prefetched` reads them
    while the model computes. Reading raises UserError for a shard made with another vocabulary than
    the manifest names.
    """

    def __init__(self, examples: Artifact, split: ExampleSet) -> None:
        if examples.kind != "examples":
            raise UserError(f"{examples.url} holds no examples but a {examples.kind}")
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

    @property
    def masking_config(self) -> MaskingConfig:
        return self.settings.masking_config()

    @cached_property
    def maskable(self) -> MaskableVocabulary:
        """What masking has to know of the vocabulary that the examples are written in."""
        with tempfile.TemporaryDirectory() as folder:
            for name in VOCABULARY_FILES:
                (Path(folder) / name).write_bytes(self._examples.local(name).read_bytes())
            return WordPieceTokenizer.from_directory(folder).maskable()

    def rows(self, pass_number: int, indices: NDArray[np.int64]) -> Rows:
        """The examples at `indices` of a pass, in this order."""
        return self.rows_of([(pass_number, indices)])

    def rows_of(self, groups: Sequence[tuple[int, NDArray[np.int64]]]) -> Rows:
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
        if missing and not self._examples.is_local:
            with ThreadPoolExecutor(_THREADS) as pool:
                self._open.update(zip(missing, pool.map(self._opened, missing), strict=True))
        for name in missing:
            if name not in self._open:
                self._open[name] = self._opened(name)
        return [self._open[name] for name in names]

    def _opened(self, name: str) -> "_Shard":
        vocabulary = self._examples.manifest.inputs["vocabulary"]
        for _ in range(_TRIES - 1):
            # Another download may evict the file from the cache before it is opened.
            with suppress(FileNotFoundError):
                return _Shard(self._examples.local(name), vocabulary)
        return _Shard(self._examples.local(name), vocabulary)


class _Shard:
    """One memory-mapped file."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        batch = read_example_batch(path)
        _check(path, batch.schema, vocabulary)
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


def _check(path: Path, schema: pa.Schema, vocabulary: str) -> None:
    found = schema.metadata or {}
    for key, expected in (("vocabulary", vocabulary), ("format_version", FORMAT_VERSION)):
        if found.get(key.encode()) != expected.encode():
            raise UserError(
                f"{path} was made with {key.replace('_', ' ')} "
                f"{found.get(key.encode(), b'none').decode()}, not {expected}; build the examples "
                "again"
            )
