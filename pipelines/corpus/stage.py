"""Stage: from text of any origin to a clean, divided corpus.

Parts are read and screened in parallel, duplicates are found across all of them, and every part
then becomes a shard. Each step is kept file by file, so that an interrupted stage goes on.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.artifacts import Artifact, Draft
from pipelines.cluster import map_tasks
from pipelines.corpus.division import copies, heldout_threshold
from pipelines.corpus.duplicates import find_repeated
from pipelines.corpus.inputs import InputFile, Part, divide, inputs_fingerprint, shard_bytes
from pipelines.corpus.publishing import PublishingTask, ScreenedFile
from pipelines.corpus.readers import list_inputs
from pipelines.corpus.report import add_up
from pipelines.corpus.screening import ScreeningTask, read_keys
from pipelines.corpus.settings import CorpusSettings
from pipelines.corpus.tally import Tally
from pipelines.errors import UserError
from pipelines.stage import Progress, StageContext
from pipelines.workspace import Workspace

VERSION = 1  # raise when the same settings and inputs would give other bytes
STAGE = "corpus"


def build_corpus(settings: CorpusSettings, context: StageContext) -> Artifact:
    """Read, clean, deduplicate and divide the text that `settings` name.

    Files `train-*.arrow` and `heldout-*.arrow` hold one row per document: `id` (a hash of its
    content), `source`, `sentences`. The statistics say what came in, what was mended and what was
    dropped, and why.
    """
    files = [
        (index, file)
        for index, source in enumerate(settings.sources)
        for file in list_inputs(source)
    ]
    return context.store.get_or_build(
        "corpus",
        version=VERSION,
        settings=settings,
        inputs={"text": inputs_fingerprint(files)},
        build=partial(_build, settings, files, context),
    )


def _build(
    settings: CorpusSettings,
    files: list[tuple[int, InputFile]],
    context: StageContext,
    draft: Draft,
) -> dict[str, Any]:
    target = shard_bytes(sum(file.num_bytes for _, file in files), settings.shard_megabytes)
    parts = divide(files, target)
    work = Workspace.of(draft)

    def watch(step: str, offset: int, total: int) -> Any:
        counter = iter(range(1, total + 1))
        return lambda index, result: context.observe(
            Progress(
                stage=STAGE,
                done=offset + next(counter),
                total=2 * total,
                unit="parts",
                figures={"step": step},
            )
        )

    names = map_tasks(
        ScreeningTask(settings=settings, work=work, shard_bytes=target),
        parts,
        num_workers=context.num_workers,
        on_result=watch("read", 0, len(parts)),
    )
    tally = _tally(work, parts)
    screened = _decide(settings, work, parts, names, tally)
    threshold = heldout_threshold(
        (_kept_groups(work, file, settings.seed) for file in screened),
        settings.heldout_fraction,
        settings.seed,
    )
    statistics: dict[str, Any] = {"train": {}, "heldout": {}}
    for published in map_tasks(
        PublishingTask(work=work, draft=draft, heldout_threshold=threshold, seed=settings.seed),
        screened,
        num_workers=context.num_workers,
        on_result=watch("write", len(screened), len(screened)),
    ):
        add_up(statistics, published)
    return {
        **statistics,
        **tally.to_json(),
        "input": {"files": len(files), "bytes": sum(file.num_bytes for _, file in files)},
    }


def _tally(work: Workspace, parts: list[Part]) -> Tally:
    tally = Tally()
    for part in parts:
        figures = work.finished(f"part-{part.index:06d}")
        assert figures is not None, "a part that was just screened is finished"
        tally.add(Tally.from_json(figures["tally"]))
    return tally


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
        raise UserError(
            "a corpus must hold at least two documents, found none"
            + (f" (dropped: {reasons})" if reasons else "")
            + "; check the sources, their layout and the cleaning"
        )
    counts = [len(read_keys(work, name)) for _, name in flat]
    is_repeated = [np.zeros(count, dtype=np.bool_) for count in counts]
    if settings.cleaning.exact_duplicates:
        is_repeated = find_repeated(lambda index: read_keys(work, flat[index][1]), counts)
        tally.dropped["duplicate"] += int(sum(flags.sum() for flags in is_repeated))
    return [
        ScreenedFile(
            index=index,
            name=name,
            weight=settings.sources[part.spans[0].source].weight,
            is_kept=~is_repeated[index],
        )
        for index, (part, name) in enumerate(flat)
    ]
