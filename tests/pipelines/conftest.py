"""Artifacts of a small corpus, built once a session with the real stages."""

import pytest

from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.stage import VocabularySettings, build_vocabulary
from pipelines.store import Artifact, ArtifactStore
from tests.pipelines.small_data import write_text_files
from tests.pipelines.trackers import fickle, home, server_port, tracker

__all__ = ["fickle", "home", "server_port", "tracker"]


@pytest.fixture(scope="session")
def small_context(tmp_path_factory) -> StageContext:
    """A local store and two workers."""
    store = ArtifactStore(tmp_path_factory.mktemp("small-store"))
    return StageContext(store=store, runtime=RuntimeSettings(num_workers=2, training_workers=1))


@pytest.fixture(scope="session")
def small_settings(tmp_path_factory) -> CorpusSettings:
    """A corpus of 24 text files in several shards."""
    paths = write_text_files(tmp_path_factory.mktemp("small-texts"))
    return CorpusSettings(
        sources=(TextFiles(paths=paths),), shard_megabytes=0.01, heldout_fraction=0.2
    )


@pytest.fixture(scope="session")
def small_corpus(local_ray, small_settings, small_context) -> Artifact:
    return build_corpus(small_settings, small_context)


@pytest.fixture(scope="session")
def small_vocabulary(small_corpus, small_context) -> Artifact:
    return build_vocabulary(VocabularySettings(size=200), small_corpus, small_context)


@pytest.fixture(scope="session")
def small_examples(small_corpus, small_vocabulary, small_context) -> Artifact:
    settings = ExampleSettings(max_tokens=64, shard_tokens=1000)
    return build_examples(settings, small_corpus, small_vocabulary, small_context)
