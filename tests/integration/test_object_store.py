"""The data stages on a real S3 server: text read from it, artifacts kept on it."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary
from pipelines.store import ArtifactStore
from tests.command_line import last_object
from tests.integration.object_stores import s3_server
from tests.pipelines.small_data import invented_text

CHAIN = """
import json, sys
from pipelines.store import ArtifactStore
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stage import StageContext
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary

context = StageContext(store=ArtifactStore("s3://bertsmith/store"))
settings = CorpusSettings(sources=(TextFiles(paths=("s3://bertsmith/texts/*.txt.gz",)),))

def chain():
    corpus = build_corpus(settings, context)
    vocabulary = build_vocabulary(VocabularySettings(size=150), corpus, context)
    return [corpus, vocabulary, build_examples(
        ExampleSettings(max_tokens=64), corpus, vocabulary, context)]

first, second = chain(), chain()
reader = ExampleReader(first[-1], "train")
((_, batch),) = micro_batches(
    reader, seed=0, step=0, global_batch_size=4, micro_batch_size=4)
print(json.dumps({
    "digests": [{n: r.sha256 for n, r in a.manifest.files.items()} for a in first],
    "built": [not artifact.reused for artifact in first],
    "reused": [artifact.reused for artifact in second],
    "tokens": batch.tokens.num_tokens,
    "url": first[0].url,
}))
"""


@pytest.fixture
def object_store(monkeypatch, tmp_path):
    """Environment of processes that use an S3 server on the loopback; a bucket is there."""
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    with s3_server(monkeypatch) as environment:
        yield {**environment, "BERTSMITH_CACHE": str(tmp_path / "cache")}


@pytest.mark.slow
def test_text_on_s3_becomes_artifacts_on_s3_with_the_same_bytes_as_locally(object_store, tmp_path):
    client = boto3.client("s3")
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        data = gzip.compress(invented_text(number, 10).encode(), mtime=0)
        (folder / f"t{number}.txt.gz").write_bytes(data)
        client.put_object(Bucket="bertsmith", Key=f"texts/t{number}.txt.gz", Body=data)
    done = subprocess.run(
        [sys.executable, "-c", CHAIN],
        env={**os.environ, **object_store},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    outcome = last_object(done.stdout)
    assert outcome["built"] == outcome["reused"] == [True] * 3
    assert outcome["tokens"] > 4 * 10
    assert outcome["url"].startswith("s3://bertsmith/store/corpus/")
    listing = client.list_objects_v2(Bucket="bertsmith", Prefix="store/")["Contents"]
    assert not [each["Key"] for each in listing if ".work" in each["Key"]]

    context = StageContext(
        store=ArtifactStore(tmp_path / "store"),
        runtime=RuntimeSettings(num_workers=2, training_workers=1),
    )
    local = build_chain(str(folder), context)
    # Everything but example shards, whose schema names the vocabulary's fingerprint.
    for artifact, digests in list(zip(local, outcome["digests"], strict=True))[:2]:
        assert {name: each.sha256 for name, each in artifact.manifest.files.items()} == digests


def build_chain(folder: str, context: StageContext):
    settings = CorpusSettings(sources=(TextFiles(paths=(f"{folder}/*.txt.gz",)),))
    corpus = build_corpus(settings, context)
    vocabulary = build_vocabulary(VocabularySettings(size=150), corpus, context)
    examples = build_examples(ExampleSettings(max_tokens=64), corpus, vocabulary, context)
    assert Path(examples.root).is_dir()
    return [corpus, vocabulary, examples]
