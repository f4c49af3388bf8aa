"""Lines that are in many documents: licences, menus, signatures."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipelines.artifacts import Workspace
from pipelines.io.text import Tally
from pipelines.stages.corpus.settings import CorpusSettings
from pipelines.stages.corpus.sources.inputs import Part, read_span

NAME: Final = "boilerplate"  # the working file with the hashes of such lines
_LINES_AT_ONCE: Final = 16_000_000
_COUNT_TYPE: Final = np.dtype([("line", "<u8"), ("documents", "<u8")])


def count_lines(settings: CorpusSettings, work: Workspace, part: Part) -> str:
    """Write in how many of the part's documents each line is; returns the file's name."""
    name = f"lines-{part.index:06d}"
    if work.finished(name) is None:
        lines: list[int] = []
        for span in part.spans:
            for raw in read_span(settings.sources[span.source], span, Tally()):
                lines.extend(set(map(hash_of_line, raw.sentences or raw.text.split("\n"))))
        unique, counts = np.unique(np.array(lines, dtype=np.uint64), return_counts=True)
        table = np.empty(unique.size, dtype=_COUNT_TYPE)
        table["line"], table["documents"] = unique, counts
        with work.file(name) as file:
            file.path.write_bytes(table.tobytes())
    return name


def find_boilerplate(work: Workspace, names: list[str], min_documents: int) -> None:
    """Write the hashes of the lines that are in at least `min_documents` documents.

    The lines of large corpora are added up in several rounds, so that memory is bounded.
    """
    if work.finished(NAME) is not None:
        return

    def load(name: str) -> NDArray[np.void]:
        return np.frombuffer(work.read(name), dtype=_COUNT_TYPE)

    rounds = max(1, -(-sum(load(name).size for name in names) // _LINES_AT_ONCE))
    found = [_frequent(load, names, min_documents, rounds, residue) for residue in range(rounds)]
    with work.file(NAME) as file:
        file.path.write_bytes(np.sort(np.concatenate(found)).tobytes())


@lru_cache(maxsize=1)
def read_boilerplate(work: Workspace) -> frozenset[int]:
    return frozenset(np.frombuffer(work.read(NAME), dtype=np.uint64).tolist())


def hash_of_line(line: str) -> int:
    """64 bits that lines share which differ in case and outer white space only; 0 if blank."""
    plain = line.strip().lower()
    if not plain:
        return 0
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "little")


def _frequent(
    load: Callable[[str], NDArray[np.void]],
    names: list[str],
    min_documents: int,
    rounds: int,
    residue: int,
) -> NDArray[np.uint64]:
    tables = (load(name) for name in names)  # one at a time
    rows = np.concatenate([table[table["line"] % rounds == residue] for table in tables])
    unique, inverse = np.unique(rows["line"], return_inverse=True)
    totals = np.zeros(unique.size, dtype=np.uint64)
    np.add.at(totals, inverse, rows["documents"])
    frequent: NDArray[np.uint64] = unique[(totals >= min_documents) & (unique != 0)]
    return frequent
