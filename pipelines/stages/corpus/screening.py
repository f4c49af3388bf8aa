"""One part of the corpus: read, mended, screened and cut into sentences.

These are working files: duplicates are removed once all parts are known.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipelines.artifacts import Workspace
from pipelines.io.text import Tally
from pipelines.stages.corpus.cleaning import language_of, split_sentences
from pipelines.stages.corpus.duplicates import (
    Signature,
    content_hash,
    document_id,
    signature,
)
from pipelines.stages.corpus.settings import CleaningSettings, CorpusSettings
from pipelines.stages.corpus.shards import Document, ShardWriter
from pipelines.stages.corpus.sources import read_span
from pipelines.stages.corpus.sources.inputs import Part, RawDocument

# A row's content hash, in two halves, and the beginning of its group's.
KEY_TYPE: Final = np.dtype([("high", ">u8"), ("low", ">u8"), ("group", ">u8")])


def screen(settings: CorpusSettings, work: Workspace, shard_bytes: int, part: Part) -> list[str]:
    """Write the part's documents as one file or several of `shard_bytes`; their names."""
    listing = f"part-{part.index:06d}"
    done = work.finished(listing)
    if done is not None:
        names: list[str] = done["names"]
        return names
    tally = Tally()
    documents = _documents(settings, part, tally)
    has_signatures = settings.cleaning.near_duplicates
    names = []
    first = next(documents, None)
    while first is not None:
        names.append(f"{listing}-{len(names):04d}.arrow")
        first = _write_file(work, names[-1], first, documents, shard_bytes, has_signatures)
    work.mark(listing, names=names, tally=tally.to_json())
    return names


def _documents(
    settings: CorpusSettings, part: Part, tally: Tally
) -> Iterator[tuple[Document, str]]:
    """Documents that pass, each with the hash of its content."""
    for span in part.spans:
        for raw in read_span(settings.sources[span.source], span, tally):
            reason = objection(raw, settings.cleaning)
            if reason is not None:
                tally.dropped[reason] += 1
                continue
            content = content_hash(raw.text)
            sentences = raw.sentences or split_sentences(raw.text)
            identifier = document_id(content, raw.group, raw.piece)
            yield Document(identifier, raw.label, list(sentences)), content


def _write_file(
    work: Workspace,
    name: str,
    first: tuple[Document, str],
    rest: Iterator[tuple[Document, str]],
    shard_bytes: int,
    has_signatures: bool,
) -> tuple[Document, str] | None:
    """Fill one file; returns the document that begins the next one."""
    keys: list[str] = []
    signatures: list[Signature] = []
    following: tuple[Document, str] | None = first
    with work.file(name) as shard:
        writer = ShardWriter(shard.path, compression=None)
        while following is not None and writer.num_bytes < shard_bytes:
            document, content = following
            writer.write(document, len(document.text.encode()))
            keys.append(content + document.id[:16])
            if has_signatures:
                signatures.append(signature(document.text))
            following = next(rest, None)
        writer.close()
    work.write(keys_of(name), bytes.fromhex("".join(keys)))
    if signatures:
        work.write(signatures_of(name), np.stack(signatures).tobytes())
    return following


def objection(raw: RawDocument, cleaning: CleaningSettings) -> str | None:
    """Why a document is left out, or None where it may stay."""
    if not raw.text or raw.text.isspace():
        return "empty"
    if len(raw.text) < cleaning.min_characters:
        return "too few characters"
    if cleaning.max_characters is not None and len(raw.text) > cleaning.max_characters:
        return "too many characters"
    if cleaning.languages and language_of(raw.text) not in cleaning.languages:
        return "other language"
    return None


def keys_of(name: str) -> str:
    """The file beside the documents that holds their keys, `KEY_TYPE` each."""
    return f"{name}.keys"


def signatures_of(name: str) -> str:
    """The file beside the documents that holds their signatures, where near duplicates count."""
    return f"{name}.minhash"


def read_keys(work: Workspace, name: str) -> NDArray[np.void]:
    """Keys of the documents in the file `name`, in order."""
    return np.frombuffer(work.read(keys_of(name)), dtype=KEY_TYPE)
