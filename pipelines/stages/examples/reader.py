"""An examples artifact, open for reading: any example of any pass, memory-mapped."""

import logging
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Sequence
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
from pipelines.artifacts.cache import LocalCache
from pipelines.config.errors import UserError
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.shards import (
    FORMAT_VERSION,
    VOCABULARY_FILES,
    lists_in,
    read_example_batch,
)

logger = logging.getLogger(__name__)

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

    A shard is opened when an example of it is first read. From a remote store the shards of the
    present and the next pass are fetched in the background, if the node's cache holds them: a rank
    needs all of a pass, whose order is random (docs/decisions/0020). Each rank of a node begins
    with its `share`, (local rank, ranks on the node). Reading raises UserError for a shard made
    with another vocabulary than the manifest names.
    """

    def __init__(
        self,
        examples: Artifact,
        split: ExampleSet,
        share: tuple[int, int] = (0, 1),
    ) -> None:
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
        self._share = share
        self._fetched_ahead: set[int] = set()  # passes

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
        if not self._examples.is_local:
            self._fetch(names)
            for pass_number, _ in groups:
                self._fetch_ahead(pass_number)
        places = list(zip(map(self._shard, names), offsets, strict=True))
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

    def _fetch(self, names: Iterable[str]) -> None:
        """Open these shards, several at a time; what is fetched ahead does not hold them up."""
        missing = [name for name in dict.fromkeys(names) if name not in self._open]
        if missing:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(self._shard, missing))

    def _fetch_ahead(self, pass_number: int) -> None:
        """Have the rest of the pass fetched in the background, and the pass after it."""
        waiting: deque[str] = deque()
        for wanted in (pass_number, (pass_number + 1) % len(self._passes)):
            if wanted in self._fetched_ahead:
                continue
            self._fetched_ahead.add(wanted)
            names = self._passes[wanted]
            records = self._examples.manifest.files
            num_bytes = sum(records[name].bytes for name in names)
            room = LocalCache().max_bytes
            if num_bytes > room:
                logger.warning(
                    "the cache holds %s bytes, less than the %s of a pass, so its shards are not "
                    "fetched ahead; raise BERTSMITH_CACHE_BYTES", room, num_bytes,
                )  # fmt: skip
                continue
            begin = len(names) * self._share[0] // self._share[1]
            waiting.extend([*names[begin:], *names[:begin]])
        for _ in range(min(_THREADS, len(waiting))):
            # A daemon: a process that ends waits for no download.
            threading.Thread(
                target=self._open_until_empty, args=(waiting,), name="fetch", daemon=True
            ).start()

    def _open_until_empty(self, waiting: "deque[str]") -> None:
        with suppress(IndexError):
            while True:
                name = waiting.popleft()
                try:
                    self._shard(name)
                except Exception as error:  # noqa: BLE001  (raised where the shard is asked for)
                    logger.warning("%s could not be fetched ahead: %s", name, error)

    def _shard(self, name: str) -> "_Shard":
        vocabulary = self._examples.manifest.inputs["vocabulary"]
        for tries_left in reversed(range(_TRIES)):
            if name in self._open:
                break
            try:
                self._open[name] = _Shard(self._examples.local(name), vocabulary)
            except FileNotFoundError:  # another download may evict the file before it is opened
                if not tries_left:
                    raise
        return self._open[name]


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
