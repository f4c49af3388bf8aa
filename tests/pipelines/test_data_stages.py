"""Corpus, vocabulary and examples: the same bytes for any workers and after any interruption."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import Progress, StageContext
from pipelines.stages.corpus.extraction import NO_TEXT
from pipelines.stages.corpus.settings import CleaningSettings, CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary
from pipelines.store import Artifact, ArtifactStore
from tests.pipelines.small_data import invented_text

EXAMPLES = ExampleSettings(max_tokens=64, shard_tokens=1000)
VOCABULARY = VocabularySettings(size=200)


class InterruptionError(Exception):
    """Stands for whatever ends a run."""


def digests(artifact: Artifact) -> dict[str, str]:
    return {name: record.sha256 for name, record in artifact.manifest.files.items()}


def chain(settings: CorpusSettings, context: StageContext) -> list[Artifact]:
    corpus = build_corpus(settings, context)
    vocabulary = build_vocabulary(VOCABULARY, corpus, context)
    return [corpus, vocabulary, build_examples(EXAMPLES, corpus, vocabulary, context)]


def modification_times(folder: Path) -> dict[str, int]:
    """When each working file was written."""
    files = [path for path in folder.glob(".work-*/*") if path.is_file()]
    files = [path for path in files if not path.name.startswith(".")]  # the store's own notes
    return {path.name: path.stat().st_mtime_ns for path in files}


def note_rewritten(
    folder: Path, before: dict[str, int], rewritten: set[str], progress: Progress
) -> None:
    """Add the files that were written again to `rewritten`."""
    now = modification_times(folder)
    rewritten.update(name for name in now if before.get(name, now[name]) != now[name])


@pytest.mark.parametrize("num_workers", [1, 4])
def test_any_number_of_workers_writes_the_same_bytes(
    tmp_path, num_workers, small_settings, small_corpus, small_vocabulary, small_examples
):
    context = StageContext(
        store=ArtifactStore(tmp_path), runtime=RuntimeSettings(num_workers=num_workers)
    )
    found = chain(small_settings, context)
    for artifact, expected in zip(
        found, [small_corpus, small_vocabulary, small_examples], strict=True
    ):
        assert not artifact.reused
        assert artifact.fingerprint == expected.fingerprint
        assert digests(artifact) == digests(expected)
        assert artifact.statistics == expected.statistics


def test_an_interrupted_stage_goes_on_where_it_stopped(
    tmp_path, small_settings, small_corpus, small_vocabulary, small_examples
):
    store = ArtifactStore(tmp_path)
    stopped_at: list[int] = []

    def stop_soon(progress: Progress) -> None:
        if progress.done >= 5:
            stopped_at.append(int(progress.done))
            raise InterruptionError

    steps = [
        lambda context: build_corpus(small_settings, context),
        lambda context: build_vocabulary(VOCABULARY, small_corpus, context),
        lambda context: build_examples(EXAMPLES, small_corpus, small_vocabulary, context),
    ]
    for step, expected in zip(steps, [small_corpus, small_vocabulary, small_examples], strict=True):
        with pytest.raises(InterruptionError):
            step(
                StageContext(store=store, runtime=RuntimeSettings(num_workers=2), observe=stop_soon)
            )
        kept = modification_times(tmp_path / expected.kind)
        assert len(kept) >= 5
        rewritten: set[str] = set()
        watch = partial(note_rewritten, tmp_path / expected.kind, kept, rewritten)
        artifact = step(
            StageContext(store=store, runtime=RuntimeSettings(num_workers=2), observe=watch)
        )
        assert digests(artifact) == digests(expected)
        assert not rewritten
    assert len(stopped_at) == 3


@pytest.mark.slow
@pytest.mark.parametrize("parts_before_the_kill", [1, 7])
def test_a_killed_run_leaves_nothing_half_written(
    tmp_path, parts_before_the_kill, small_settings, small_corpus
):
    script = f"""
import os, signal
from pipelines.store import ArtifactStore
from pipelines.stages.corpus.settings import CorpusSettings
from pipelines.stages.corpus.stage import build_corpus
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext

def kill(progress):
    if progress.done >= {parts_before_the_kill}:
        os.kill(os.getpid(), signal.SIGKILL)

settings = CorpusSettings.model_validate_json({small_settings.model_dump_json()!r})
runtime = RuntimeSettings(num_workers=2)
context = StageContext(store=ArtifactStore({str(tmp_path)!r}), runtime=runtime, observe=kill)
build_corpus(settings, context)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    store = ArtifactStore(tmp_path)
    assert store.find("corpus", small_corpus.fingerprint) is None
    artifact = build_corpus(
        small_settings, StageContext(store=store, runtime=RuntimeSettings(num_workers=2))
    )
    assert digests(artifact) == digests(small_corpus)


def test_asking_again_is_a_look_up_and_another_mask_rate_keeps_corpus_and_vocabulary(
    small_settings, small_context, small_corpus, small_vocabulary, small_examples
):
    assert build_corpus(small_settings, small_context).reused
    assert build_vocabulary(VOCABULARY, small_corpus, small_context).reused
    other = EXAMPLES.model_copy(update={"mask_fraction": 0.3})
    rebuilt = build_examples(other, small_corpus, small_vocabulary, small_context)
    assert not rebuilt.reused
    assert rebuilt.fingerprint != small_examples.fingerprint


def test_nothing_is_dropped_without_being_counted(tmp_path, small_context):
    texts = [invented_text(number, 8) for number in range(6)]
    blocks = [*texts, texts[0].upper(), "Short.", texts[1].replace(" ", "  "), "Tiny one."]
    (tmp_path / "all.txt").write_text("\n\n".join(blocks))
    settings = CorpusSettings(
        sources=(TextFiles(paths=(str(tmp_path / "all.txt"),), layout="blank_line"),),
        cleaning=CleaningSettings(min_characters=15),
        heldout_fraction=0.4,
    )
    statistics = build_corpus(settings, small_context).statistics
    assert statistics["dropped"] == {"duplicate": 2, "too few characters": 2}
    kept = statistics["train"]["documents"] + statistics["heldout"]["documents"]
    assert kept + 4 == len(blocks)


def test_rows_without_text_are_told_or_refused(tmp_path, small_context, caplog):
    path = tmp_path / "rows.jsonl"
    texts = [invented_text(number, 8) for number in range(60)]
    settings = CorpusSettings(sources=(TextFiles(paths=(str(path),)),))
    for missing, message in (
        (5, None),
        (90, "90 rows without text in 'text', beside 60 documents"),
    ):
        rows = [{"text": text} for text in texts] + [{"text": None}] * missing
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        caplog.clear()
        with pytest.raises(UserError, match=message) if message else nullcontext():
            build_corpus(settings, small_context)
        assert ("left out of the corpus: 5 rows without text in 'text'" in caplog.text) == (
            message is None
        )


@pytest.mark.parametrize(("weight", "missing", "is_right"), [(0.3, 120, True), (10, 300, False)])
def test_rows_without_text_are_compared_with_the_rows_that_have_one(
    tmp_path, small_context, weight, missing, is_right
):
    """Neither the weight of their source nor duplicates change how many these are."""
    texts = [invented_text(number // 2, 4) for number in range(200)]
    rows = [{"text": text} for text in texts] + [{"text": None}] * missing
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = TextFiles(paths=(str(path),), weight=weight)
    settings = CorpusSettings(sources=(source,), heldout_fraction=0.3)
    message = f"{missing} rows without text in 'text', beside 200 documents"
    with nullcontext() if is_right else pytest.raises(UserError, match=message):
        build_corpus(settings, small_context)


def test_many_documents_that_are_too_short_are_warned_of(tmp_path, small_context, caplog):
    sentences = [f"第{number}句话说的是这条河。" for number in range(90)]  # a dozen letters each
    longer = [f"{sentence}{sentence}" for sentence in sentences]
    (tmp_path / "a.txt").write_text("\n".join([*sentences[:11], *longer]), encoding="utf-8")
    source = TextFiles(paths=(str(tmp_path / "a.txt"),), layout="line")
    for least, is_told in ((20, True), (1, False)):
        caplog.clear()
        cleaning = CleaningSettings(min_characters=least)
        build_corpus(CorpusSettings(sources=(source,), cleaning=cleaning), small_context)
        assert is_told == ("11 of the 101 documents of corpus.sources.0 have fewer" in caplog.text)


def test_files_without_text_are_warned_of(tmp_path, small_context, caplog):
    for number in range(60):
        page = f"<html><body><p>{invented_text(number, 8)}</p></body></html>"
        (tmp_path / f"{number}.html").write_text(page)
    (tmp_path / "frame.html").write_text("<html><body><nav>Home</nav></body></html>")
    source = TextFiles(paths=(str(tmp_path / "*.html"),))
    statistics = build_corpus(CorpusSettings(sources=(source,)), small_context).statistics
    assert f"left out of the corpus: 1 {NO_TEXT}" in caplog.text
    assert statistics["dropped"] == {NO_TEXT: 1}


def test_stray_blank_lines_are_refused_and_not_taken_for_the_ends_of_documents(
    tmp_path, small_context
):
    """Reviews, one a line, with five blank lines among them: six documents by blank lines."""
    lines = [f"{invented_text(number, 1)}" for number in range(300)]
    for place in (250, 120, 100, 60, 20):
        lines.insert(place, "")
    (tmp_path / "reviews.txt").write_text("\n".join(lines))

    def build(**settings: object) -> Artifact:
        source = TextFiles(paths=(str(tmp_path / "reviews.txt"),), **settings)
        return build_corpus(CorpusSettings(sources=(source,)), small_context)

    with pytest.raises(UserError, match=r"6 documents, of which 2 with \d+% .*--layout"):
        build(layout="blank_line")
    with pytest.raises(UserError, match=r"at least 4 documents"):
        build()
    statistics = build(layout="line").statistics
    assert statistics["train"]["documents"] + statistics["heldout"]["documents"] > 290


def test_a_vocabulary_that_the_corpus_cannot_support_is_refused(small_corpus, small_context):
    remedy = r"too small for a vocabulary of 30,000 tokens.*give \d.*and `max_characters` to 7500"
    with pytest.raises(UserError, match=remedy):
        build_vocabulary(VocabularySettings(size=30_000), small_corpus, small_context)
    with pytest.raises(UserError, match=r"less than the .* special tokens and characters"):
        build_vocabulary(VocabularySettings(size=100, num_unused=90), small_corpus, small_context)
