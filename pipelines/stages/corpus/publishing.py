"""From a screened part to the corpus's own shards: without duplicates, divided, counted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.artifacts import Draft
from pipelines.artifacts.attempts.workspace import Workspace
from pipelines.stages.corpus.division import copies, heldout_draws
from pipelines.stages.corpus.report import add_up, describe
from pipelines.stages.corpus.screening import read_keys
from pipelines.stages.corpus.shards import SCHEMA, read_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedFile:
    """A screened file, the number of the shard it becomes, and what of it stays."""

    index: int
    name: str
    weight: float
    is_kept: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingTask:
    """Everything a worker needs to publish any screened file."""

    work: Workspace
    draft: Draft
    heldout_threshold: float
    seed: int

    def __call__(self, file: ScreenedFile) -> dict[str, Any]:
        """Write `train-` and `heldout-` shards; returns their statistics by split."""
        marker = f"published-{file.index:06d}"
        done = self.work.finished(marker)
        if done is not None and all(
            self.draft.finished(shard_name(split, file.index)) is not None for split in done
        ):
            return done
        groups = read_keys(self.work, file.name)["group"].astype(np.uint64)
        is_heldout = heldout_draws(groups, self.seed) <= self.heldout_threshold
        times = copies(groups, file.weight, self.seed) * file.is_kept
        with self.work.local(file.name) as path:
            statistics = {
                split: self._write(split, file.index, path, repeats)
                for split, repeats in (
                    ("train", np.where(is_heldout, 0, times)),
                    ("heldout", np.where(is_heldout, np.minimum(times, 1), 0)),
                )
                if repeats.any()
            }
        self.work.mark(marker, **statistics)
        return statistics

    def _write(
        self, split: str, index: int, screened: Path, repeats: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Write each document `repeats` times; returns the statistics."""
        statistics: dict[str, Any] = {}
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        with (
            self.draft.file(shard_name(split, index)) as shard,
            pa.OSFile(str(shard.path), "wb") as stream,
            pa.ipc.new_file(stream, SCHEMA, options=options) as writer,
        ):
            first = 0
            for batch in read_batches(screened):
                rows = np.arange(batch.num_rows)
                chosen = np.repeat(rows, repeats[first : first + batch.num_rows])
                first += batch.num_rows
                if chosen.size:
                    selected = batch.take(pa.array(chosen))
                    writer.write_batch(selected)
                    add_up(statistics, describe(selected))
            shard.figures.update(documents=statistics["documents"], words=statistics["words"])
        return statistics


def shard_name(split: str, index: int) -> str:
    """The file of a split that the screened file `index` becomes."""
    return f"{split}-{index:06d}.arrow"
