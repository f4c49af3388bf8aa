"""What the world can do to the data stages, and what they say to it."""

import subprocess
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.shards import read_documents
from pipelines.stages.corpus.stage import build_corpus
from pipelines.store import ArtifactStore
from tests.pipelines.small_data import invented_text


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 600 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs more rights than this user has")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def texts(folder: Path, num_files: int, num_sentences: int) -> CorpusSettings:
    folder.mkdir(exist_ok=True)
    for number in range(num_files):
        (folder / f"t{number}.txt").write_text(invented_text(number, num_sentences))
    source = TextFiles(paths=(str(folder),))
    return CorpusSettings(sources=(source,), shard_megabytes=0.2, heldout_fraction=0.4)


def test_a_full_disk_is_named_and_finished_files_are_kept(tmp_path, small_disk):
    settings = texts(tmp_path / "texts", 6, 4000)
    context = StageContext(store=ArtifactStore(small_disk), runtime=RuntimeSettings(num_workers=2))
    with pytest.raises(UserError, match=r"no room for .*free some space"):
        build_corpus(settings, context)
    kept = list(small_disk.glob("corpus/.work-*/part-*.arrow"))
    assert kept
    assert not list(small_disk.glob("corpus/*/manifest.json"))
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    written = {path: path.stat().st_mtime_ns for path in kept}
    corpus = build_corpus(settings, context)
    assert not corpus.reused
    assert written  # the run went on from these
    assert (
        sum(1 for _ in read_documents(corpus, "train")) == corpus.statistics["train"]["documents"]
    )
