"""Training data of the usual script: windows of running text, or our sentence pairs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch.utils.data import Dataset

from pipelines.stages.examples.batches import ExampleReader
from pipelines.store import Artifact


def windows(corpus: Artifact, kept: Path, tokenizer: Any, max_tokens: int) -> "Windows":
    """The training texts joined and cut into [CLS] window [SEP]; the remainder is dropped.

    Tokenized once and kept in a file: this counts in no side's time.
    """
    if not kept.is_file():
        parts: list[NDArray[np.int32]] = []
        for name in corpus.names("train-"):
            with pa.memory_map(str(corpus.local(name))) as source:
                documents = pa.ipc.open_file(source).read_all().column("sentences").to_pylist()
            for document in documents:
                ids = tokenizer(" ".join(document), add_special_tokens=False, verbose=False)
                parts.append(np.array(ids["input_ids"], dtype=np.int32))
        stream = np.concatenate(parts)
        rows = stream[: stream.size // (max_tokens - 2) * (max_tokens - 2)]
        rows = rows.reshape(-1, max_tokens - 2)
        special = np.full((len(rows), 1), tokenizer.cls_token_id, dtype=np.int32)
        ends = np.full_like(special, tokenizer.sep_token_id)
        np.save(kept, np.concatenate([special, rows, ends], axis=1))
    return Windows(np.load(kept, mmap_mode="r"))


class Windows(Dataset):
    """[N, S] token ids, row by row as the library's collator takes them."""

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._rows = rows
        self.mean_tokens = float(rows.shape[1])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self._rows[index].tolist()}


class Pairs(Dataset):
    """Our sentence pairs, unmasked, as the library's collator takes them."""

    def __init__(self, examples: Artifact) -> None:
        reader = ExampleReader(examples, "train")
        self._rows = reader.rows([(0, np.arange(reader.pass_sizes[0]))])
        self._starts = np.cumsum(self._rows.lengths) - self._rows.lengths
        self.mean_tokens = float(self._rows.lengths.mean())

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows, start, length = self._rows, self._starts[index], int(self._rows.lengths[index])
        assert rows.is_random_next is not None
        b_start = int(rows.segment_b_start[index])
        return {
            "input_ids": rows.input_ids[start : start + length].tolist(),
            "token_type_ids": [0] * b_start + [1] * (length - b_start),
            "next_sentence_label": int(rows.is_random_next[index]),
        }
