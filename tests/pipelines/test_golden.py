"""The bytes of every data stage on a tiny input, written down.

Where a digest differs, the same settings give other bytes than before: whoever has an artifact of
this name would not get what the code now makes.
"""

import hashlib
import json
from pathlib import Path

import pytest

from pipelines.settings import RuntimeSettings
from pipelines.stage import Stage, StageContext
from pipelines.stages import CORPUS, DATASET, EXAMPLES, VOCABULARY
from pipelines.stages.corpus import stage as corpus_stage
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.dataset import stage as labelled_stage
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.examples import stage as examples_stage
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.vocabulary import stage as vocabulary_stage
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.store import Artifact, ArtifactStore

# (stage, its version): digest of its files, made with constraints.txt (pyarrow 25.0.1, tokenizers
# 0.23.3, blingfire 0.1.8).
GOLDEN = {
    ("corpus", 6): "101c87b84df2a482818bf448e9670bce83c7363a2ef74d269f0606f8a11a2fdb",
    ("vocabulary", 1): "ea454838dbffae7d6d1c4ddf42f174a5adc4d3f6e6ad404584d3221e8645de1c",
    ("examples", 2): "bbe66302f81408539ea572b5370eecb5fcdda1483c4936274b18dd26f162bfcb",
    ("dataset", 11): "2f5f24bcb64252ad219d5139c8f761b86f5756cc0dd1e839b919e758c4a17d75",
}
NOUNS = ("river", "teacher", "garden", "engine", "winter", "letter", "harbour", "mountain")
VERBS = ("carries", "forgets", "answers", "follows", "mends", "opens", "watches")
PLACES = ("by the old mill", "in São Paulo", "at Dr. Moor's house", "under the bridge", "far away")


def text_about(subject: int, num_sentences: int) -> str:
    sentences = []
    for number in range(num_sentences):
        pick = 31 * subject + 7 * number
        sentences.append(
            f"The {NOUNS[pick % 8]} {VERBS[pick % 7]} a {NOUNS[(pick // 5) % 8]} "
            f"{PLACES[(pick // 3) % 5]}{'?' if pick % 11 == 0 else '.'}"
        )
    return " ".join(sentences)


def wrapped(text: str, width: int) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory) -> dict[str, Artifact]:
    """Every data stage, on text that stands in this file."""
    folder: Path = tmp_path_factory.mktemp("golden")
    context = StageContext(
        store=ArtifactStore(folder / "store"), runtime=RuntimeSettings(num_workers=1)
    )
    for number in range(8):
        blocks = [text_about(10 * number + block, 6 + block) for block in range(4)]
        whole = "\n\n".join(wrapped(block, 60) if number % 2 else block for block in blocks)
        (folder / f"book{number}.txt").write_text(whole, encoding="utf-8")
    records = [{"text": text_about(100 + number, 5)} for number in range(12)]
    (folder / "records.jsonl").write_text(
        "\n".join(json.dumps(record) for record in [*records, records[0]])
    )
    rows = [f'"{text_about(200 + number, 3)}",kind{number % 3}' for number in range(60)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    corpus = corpus_stage.build_corpus(
        CorpusSettings(
            sources=(
                TextFiles(paths=(str(folder / "book*.txt"),), hard_wrapped=True),
                TextFiles(paths=(str(folder / "records.jsonl"),), weight=1.5),
                TextFiles(paths=(str(folder / "rows.csv"),), label_field="label"),
            ),
            shard_megabytes=0.004,
            heldout_fraction=0.2,
        ),
        context,
    )
    vocabulary = vocabulary_stage.build_vocabulary(VocabularySettings(size=130), corpus, context)
    examples = examples_stage.build_examples(
        ExampleSettings(max_tokens=48, num_passes=2, shard_tokens=2000), corpus, vocabulary, context
    )
    dataset = labelled_stage.build_dataset(
        DatasetSettings(source=LabelledFile(path=str(folder / "rows.csv"))), None, context
    )
    made = (corpus, vocabulary, examples, dataset)
    return dict(zip(("corpus", "vocabulary", "examples", "dataset"), made, strict=True))


def digest_of(artifact: Artifact) -> str:
    """Of all files; the vocabulary's fingerprint, which example shards name, is blotted out."""
    digest = hashlib.sha256()
    vocabulary = artifact.manifest.inputs.get("vocabulary", "").encode()
    for name in artifact.names():
        data = artifact.local(name).read_bytes()
        if vocabulary:
            data = data.replace(vocabulary, b"0" * len(vocabulary))
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()


@pytest.mark.parametrize("stage", (CORPUS, VOCABULARY, EXAMPLES, DATASET), ids=lambda s: s.name)
def test_a_stage_writes_the_bytes_that_its_version_stands_for(artifacts, stage: Stage) -> None:
    artifact, key = artifacts[stage.name], (stage.name, stage.version)
    found = digest_of(artifact)
    assert found == GOLDEN.get(key), (
        f"the stage {stage.name} writes other bytes than its version {stage.version} stood for "
        f"({artifact.manifest.inputs.get('libraries')}): where the change is meant, raise the "
        f"version in pipelines/stages/{stage.name}/__init__.py and write the new one into GOLDEN "
        f"with {found!r}; where it is not, find out what changed"
    )
