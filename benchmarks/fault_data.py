"""Training data of the fault benchmarks: a small real text, as sentence pairs."""

from pathlib import Path
from typing import Any

from pipelines.artifacts import ArtifactStore
from pipelines.cluster.connection import disconnect
from pipelines.config.runtime import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, InstalledDocumentation
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import ExampleSettings, build_examples
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary

# Everything that could differ after resuming is on: masks redrawn in each epoch (the default),
# dropout (the default), next sentence prediction, ragged batches, a logged loss for each step.
SETTINGS: dict[str, Any] = {
    "size": "tiny",
    "global_batch_size": 16,
    "micro_batch_size": 4,
    "log_every_steps": 1,
    "evaluate_every_steps": 100,
    "evaluation_examples": 64,
    "final_evaluation_examples": 64,
    "precision": "float32",
}


def build_data(folder: Path) -> dict[str, str]:
    """Build the artifacts in `folder`; returns their store and names for `TrainingRun`."""
    context = StageContext(store=ArtifactStore(folder), runtime=RuntimeSettings(num_workers=2))
    source = InstalledDocumentation(packages=("numpy", "networkx"), max_source_megabytes=0.6)
    corpus = build_corpus(CorpusSettings(sources=(source,)), context)
    vocabulary = build_vocabulary(VocabularySettings(size=1200), corpus, context)
    examples = build_examples(ExampleSettings(max_tokens=64), corpus, vocabulary, context)
    disconnect()
    return {
        "data": str(folder),
        "examples": examples.fingerprint,
        "vocabulary": vocabulary.fingerprint,
    }
