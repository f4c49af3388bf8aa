"""An interrupted attempt goes on with the code that began it; another code starts it over."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.attempt import attempt
from pipelines.artifacts.code import Code, code_of
from pipelines.artifacts.inventory import take_inventory
from pipelines.artifacts.manifest import ArtifactPaths
from pipelines.config.versions import source_folders
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.pretraining.stage import build_encoder
from tests.pipelines.small_data import invented_text

FIRST, SECOND = {"stage": "1"}, {"stage": "2"}

# Builds a corpus of four shards, and stops after the first where it is told to. Its last line:
# the code that counts, our modules that were imported, and the checksums of the shards.
PROGRAM = """
import json, logging, sys
from pathlib import Path
from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.code import code_of
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, PlainText
from pipelines.stages.corpus.stage import build_corpus

logging.basicConfig(level=logging.WARNING)
modules = sorted(
    name for name, module in sys.modules.items()
    if name.startswith(("bert_core.", "pipelines.")) and not hasattr(module, "__path__")
)
texts, store, stops = sys.argv[1:]

def observe(progress):
    if stops == "stop" and progress.figures.get("step") == "write":
        raise KeyboardInterrupt

sources = (PlainText(paths=(texts,)),)
settings = CorpusSettings(sources=sources, shard_megabytes=0.2)
shards = {}
try:
    corpus = build_corpus(settings, StageContext(store=ArtifactStore(store), observe=observe))
    shards = {name: file.sha256 for name, file in corpus.manifest.files.items()}
except KeyboardInterrupt:
    pass
print(json.dumps([dict(code_of(build_corpus)), modules, shards]))
"""


@pytest.fixture(params=["local", "remote"])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactPaths:
    url = tmp_path if request.param == "local" else f"memory://{tmp_path.name}/store"
    return ArtifactStore(url).paths("corpus", "a" * 32)


def interrupted(paths: ArtifactPaths, code: Code) -> bool:
    """Make an attempt that is interrupted; whether it found the file of one before."""
    found = False
    with pytest.raises(RuntimeError, match="stop"), attempt(paths, code) as draft:
        found = draft.finished("a.txt") is not None
        if not found:
            with draft.file("a.txt") as file:
                file.path.write_text("a")
        raise RuntimeError("stop")
    return found


def test_files_of_two_codes_never_meet(
    paths: ArtifactPaths, caplog: pytest.LogCaptureFixture
) -> None:
    assert not interrupted(paths, FIRST)
    assert interrupted(paths, FIRST)
    assert not caplog.records
    assert not interrupted(paths, SECOND)
    assert "the code has changed since" in caplog.text
    assert "(stage): " in caplog.text
    assert interrupted(paths, SECOND)


def test_what_the_former_code_made_is_left_for_prune(paths: ArtifactPaths) -> None:
    interrupted(paths, FIRST)
    interrupted(paths, SECOND)
    root = paths.kind_folder.rpartition("/")[0]
    store = ArtifactStore(root if paths.is_local else f"memory://{root}")
    left = [each for each in take_inventory(store).leftovers if each.what != "lock"]
    kept = [path for each in left for path in each.files if Path(path).name == "a.txt.json"]
    assert len(kept) == 2


def test_an_attempt_that_does_not_say_its_code_starts_over(paths: ArtifactPaths) -> None:
    interrupted(paths, FIRST)
    for path in paths.filesystem.find(paths.work):
        if path.endswith(".code.json"):
            paths.filesystem.rm_file(path)
    assert not interrupted(paths, FIRST)


def test_an_attempt_without_a_file_is_silently_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = ArtifactStore(tmp_path).paths("corpus", "a" * 32)
    with pytest.raises(RuntimeError, match="stop"), attempt(paths, FIRST) as draft:
        draft.note_inputs({"text": "b" * 32})
        raise RuntimeError("stop")
    assert not interrupted(paths, SECOND)
    assert not caplog.records
    assert [path.name for path in tmp_path.glob("corpus/.aside-*")] == []


def test_a_stage_s_code_is_what_it_imports_without_the_surroundings() -> None:
    corpus, dataset, encoder = map(code_of, (build_corpus, build_dataset, build_encoder))
    assert {"pipelines.stages.corpus.cleaning", "pipelines.io.files"} <= {*corpus}
    assert "pipelines.stages.corpus.sources.markup" in corpus  # imported by a name put together
    assert {"pipelines.tasks.tagging", "pipelines.tasks.scoring.spans"} <= {*dataset}
    assert {"bert_core.training.optimization.rules", "bert_core.backends.cpu.layout"} <= {*encoder}
    assert {"pipelines.training.worker", "pipelines.stages.examples.batches"} <= {*encoder}
    for code in (corpus, dataset, encoder):
        assert "pipelines.artifacts.store" not in code
        assert "pipelines.config.errors" not in code
    assert not any(name.startswith(("bert_core.model", "pipelines.training")) for name in corpus)


@pytest.mark.slow
def test_an_edited_stage_begins_its_corpus_again(tmp_path: Path) -> None:
    copy, texts = tmp_path / "sources", tmp_path / "texts"
    for folder in source_folders():
        shutil.copytree(folder, copy / folder.name)
    texts.mkdir()
    for number in range(4):
        (texts / f"t{number}.txt").write_text(invented_text(number, 2000))

    def build(store: str, stops: str = "") -> tuple[Code, list[str], dict[str, str], str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(texts), str(tmp_path / store), stops],
            env={**os.environ, "PYTHONPATH": str(copy)},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return *json.loads(done.stdout.splitlines()[-1]), done.stderr

    code, modules, shards, _ = build("store", "stop")
    assert code == code_of(build_corpus)  # wherever the sources lie
    # Of what was imported: the store and what it needs, and what the chain's own file checks.
    missing = {*modules} - {*code} - {"pipelines.training.placement"}
    assert all(
        name.startswith(("pipelines.artifacts.", "pipelines.config.", "pipelines.cluster."))
        or name == "pipelines.stage"
        for name in missing
    )
    assert not any(name.startswith("pipelines.io.") for name in missing)
    assert not shards
    (first,) = (tmp_path / "store").glob("corpus/.draft-*/train-*.arrow")
    made = first.stat().st_mtime_ns

    stage = copy / "pipelines" / "stages" / "corpus"
    publishing, sentences = stage / "publishing.py", stage / "cleaning.py"
    publishing.write_text(f'"""Another docstring."""\n# A comment.\n{publishing.read_text()}')
    *_, said = build("store", "stop")
    assert "the code has changed" not in said
    assert first.stat().st_mtime_ns == made

    written = sentences.read_text()
    sentences.write_text(written.replace("[sentence for line", "[sentence.upper() for line"))
    assert sentences.read_text() != written
    *_, shards, said = build("store")
    assert "(pipelines.stages.corpus.cleaning): it starts over" in said
    *_, fresh, said = build("another store")
    assert "the code has changed" not in said
    assert shards == fresh
