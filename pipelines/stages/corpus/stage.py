"""Stage: from text of any origin to a clean, divided corpus.

Parts are read and screened in parallel, duplicates are found across all of them, and every part
then becomes a shard. Each step is kept file by file, so that an interrupted stage resumes.
"""

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.cluster import map_tasks
from pipelines.errors import redacted
from pipelines.io.text import Tally
from pipelines.stage import Progress, StageContext
from pipelines.stages import CORPUS
from pipelines.stages.corpus.cleaning import check_codes
from pipelines.stages.corpus.screening import (
    ScreenedFile,
    add_up,
    publish,
    read_keys,
    screen,
    shard_name,
    signatures_of,
)
from pipelines.stages.corpus.selection import (
    NUM_HASHES,
    check_division,
    copies,
    find_near,
    find_repeated,
    heldout_threshold,
    too_few_documents,
)
from pipelines.stages.corpus.settings import CorpusSettings
from pipelines.stages.corpus.sources import resolve
from pipelines.stages.corpus.sources.inputs import (
    InputFile,
    Part,
    divide,
    inputs_fingerprint,
    libraries_of,
    shard_bytes,
)
from pipelines.store import Artifact, Built, Draft, Workspace
from pipelines.versions import versions_of

# Where the text lies does not matter. Its bytes or commit and its labels are in the input's name.
_IN_THE_INPUTS = {"paths", "dataset", "revision"}


def build_corpus(settings: CorpusSettings, context: StageContext) -> Artifact:
    """Read, clean, deduplicate and divide the text that `settings` name.

    Files `train-*.arrow` and `heldout-*.arrow` hold one row per document: `id` (a hash of its
    content), `source`, `sentences`. The statistics hold the input, and what was repaired and
    dropped, and why. Raises UserError if a source cannot be read, or its documents cannot be
    divided as `heldout_fraction` asks.
    """
    check_codes(settings.cleaning.languages)
    paths = [path for source in settings.sources for path in getattr(source, "paths", ())]
    resolved = list(map(resolve, settings.sources))
    settings = settings.model_copy(update={"sources": tuple(source for source, _ in resolved)})
    files = [(index, file) for index, (_, of_source) in enumerate(resolved) for file in of_source]
    # Arrow writes and compresses the shards. numpy does not count: its integers, stable sorts and
    # products of 64 bits are defined.
    libraries = {"pyarrow", "unicode"} | libraries_of(file for _, file in files)
    if settings.cleaning.languages:
        libraries.add("py3langid")
    return context.store.get_or_build(
        CORPUS.kind,
        version=CORPUS.version,
        settings=settings.model_dump(mode="json", exclude={"sources": {"__all__": _IN_THE_INPUTS}}),
        inputs={"text": inputs_fingerprint(files), "libraries": versions_of(*libraries)},
        build=partial(_build, settings, files, paths, context),
    )


def _build(
    settings: CorpusSettings,
    files: list[tuple[int, InputFile]],
    paths: list[str],
    context: StageContext,
    draft: Draft,
) -> Built:
    target = shard_bytes(sum(file.num_bytes for _, file in files), settings.shard_megabytes)
    parts = divide(files, target)
    work = draft.workspace()

    names = map_tasks(
        partial(screen, settings, work, target),
        parts,
        num_workers=context.runtime.num_workers,
        on_result=context.watch(CORPUS.name, "parts", 2 * len(parts), step="read"),
    )
    tally = Tally()
    for part in parts:
        figures = work.finished(f"part-{part.index:06d}")
        assert figures is not None, "a part that was just screened is finished"
        tally.add(Tally.from_json(figures["tally"]))
    for note in _left_out(tally):
        context.observe(Progress(
            stage=CORPUS.name, done=len(parts), total=2 * len(parts), unit="parts", note=note
        ))  # fmt: skip
    screened = _decide(settings, work, parts, names, tally)
    threshold = heldout_threshold(
        (_kept_groups(work, file, settings.seed) for file in screened),
        settings.heldout_fraction,
        settings.seed,
    )
    statistics: dict[str, Any] = {"train": {}, "heldout": {}}
    published = map_tasks(
        partial(publish, work, draft, threshold, settings.seed),
        screened,
        num_workers=context.runtime.num_workers,
        on_result=context.watch(
            CORPUS.name, "parts", 2 * len(screened), done=len(screened), step="write"
        ),
    )
    for of_shard in published:
        add_up(statistics, of_shard)
    check_division(statistics, settings.heldout_fraction)
    shards = [
        shard_name(split, file.index)
        for file, of_shard in zip(screened, published, strict=True)
        for split in of_shard
    ]
    statistics = {
        **statistics,
        **tally.to_json(),
        "input": {
            "files": len(files),
            "bytes": sum(file.num_bytes for _, file in files),
            "paths": [redacted(path) for path in paths],
        },
    }
    return Built(shards, statistics)


def _left_out(tally: Tally) -> list[str]:
    """A sentence for every reason for which files gave nothing, with some of them."""
    return [
        f"{tally.dropped[reason]:,} {reason}, left out: {', '.join(paths)}"
        + (f" and {more:,} more" if (more := tally.dropped[reason] - len(paths)) else "")
        for reason, paths in sorted(tally.dropped_files.items())
    ]


def _kept_groups(work: Workspace, file: ScreenedFile, seed: int) -> NDArray[np.uint64]:
    groups = read_keys(work, file.name)["group"]
    return groups[file.is_kept & (copies(groups, file.weight, seed) > 0)]


def _decide(
    settings: CorpusSettings,
    work: Workspace,
    parts: list[Part],
    names: list[list[str]],
    tally: Tally,
) -> list[ScreenedFile]:
    """Every screened file with what of it stays, once all are known."""
    flat = [(part, name) for part, of_part in zip(parts, names, strict=True) for name in of_part]
    if not flat:
        reasons = ", ".join(f"{count} {reason}" for reason, count in tally.dropped.items())
        raise too_few_documents(0, f" (dropped: {reasons})" if reasons else "")
    counts = [len(read_keys(work, name)) for _, name in flat]
    is_repeated = [np.zeros(count, dtype=np.bool_) for count in counts]
    if settings.cleaning.exact_duplicates:
        is_repeated = find_repeated(lambda index: read_keys(work, flat[index][1]), counts)
        tally.dropped["duplicate"] += sum(int(flags.sum()) for flags in is_repeated)
    is_near = [np.zeros(count, dtype=np.bool_) for count in counts]
    if settings.cleaning.near_duplicates:
        is_near = _find_near(settings, work, [name for _, name in flat], is_repeated)
        tally.dropped["near duplicate"] += sum(int(flags.sum()) for flags in is_near)
    return [
        ScreenedFile(
            index=index,
            name=name,
            weight=settings.sources[part.spans[0].source].weight,
            is_kept=~(is_repeated[index] | is_near[index]),
        )
        for index, (part, name) in enumerate(flat)
    ]


def _find_near(
    settings: CorpusSettings, work: Workspace, names: list[str], is_dropped: list[NDArray[np.bool_]]
) -> list[NDArray[np.bool_]]:
    with ExitStack() as stack:
        paths = [stack.enter_context(work.local(signatures_of(name))) for name in names]

        def load(index: int) -> NDArray[np.uint32]:
            return np.memmap(paths[index], np.uint32, "r").reshape(-1, NUM_HASHES)

        return find_near(load, is_dropped, settings.cleaning.near_duplicate_similarity)
