"""A store as a release writes it, small enough to keep: one artifact of every kind.

    python -m tests.delivery.released_store tests/delivery/stores/0.1.0

is run once, with the code of the release, and its files are committed. Later code must open and
use them as long as docs/releasing.md promises it: tests/delivery/test_released_store.py.
"""

import argparse
import csv
import os
import tempfile
from pathlib import Path

import torch

from bert_core.config import EncoderConfig
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import save_model
from pipelines.cluster import connect, disconnect
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.evaluation import build_evaluation
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary, load_tokenizer
from pipelines.store import ArtifactStore
from tests.pipelines.small_data import invented_text

LABELS = ("calm", "loud")


def write_inputs(folder: Path) -> None:
    """Texts of invented words, and a table of such texts with one label or the other."""
    for number in range(6):
        (folder / f"text{number}.txt").write_text(invented_text(number, 8), encoding="utf-8")
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(24):
            label = LABELS[number % 2]
            rows.writerow([f"{label} {invented_text(100 + number, 1)}", label])


def write_store(folder: Path) -> None:
    """Build one artifact of every kind below `folder`, with an encoder of one layer, 16 wide."""
    store = ArtifactStore(folder.absolute())
    context = StageContext(store=store, runtime=RuntimeSettings(training_workers=1, device="cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        here = Path.cwd()
        os.chdir(scratch)  # so that manifests name inputs by relative paths
        try:
            write_inputs(Path())
            _build(context)
        finally:
            os.chdir(here)


def _build(context: StageContext) -> None:
    texts = TextFiles(paths=("text*.txt",))
    corpus = build_corpus(CorpusSettings(sources=(texts,), heldout_fraction=0.2), context)
    vocabulary = build_vocabulary(VocabularySettings(size=100), corpus, context)
    examples = build_examples(ExampleSettings(max_tokens=32), corpus, vocabulary, context)
    tokenizer = load_tokenizer(vocabulary)
    torch.manual_seed(1)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, num_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    begun = Path("begun")
    save_model(begun, PretrainingModel(config))
    tokenizer.save(begun)
    trained = {"precision": "float32", "log_every_steps": 1}
    pretraining = PretrainingSettings(
        encoder=str(begun), size=None, num_steps=4, global_batch_size=8, micro_batch_size=4,
        evaluate_every_steps=2, checkpoint_every_steps=2, evaluation_examples=8,
        final_evaluation_examples=8, **trained,
    )  # fmt: skip
    encoder = build_encoder(pretraining, examples, vocabulary, context)
    dataset = build_dataset(
        DatasetSettings(source=LabelledFile(path="labels.csv", heldout_fraction=0.3)),
        None, context,
    )  # fmt: skip
    finetuning = FinetuningSettings(
        num_epochs=2, global_batch_size=8, micro_batch_size=4, num_evaluations=1, **trained
    )
    finetuned = build_task_model(finetuning, dataset, encoder, context)
    build_evaluation(finetuned, dataset, context)


def main() -> None:
    """Write the store into the folder that is named, which must not be there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} must not be there yet: a release writes its store once")
    connect()
    try:
        write_store(folder)
    finally:
        disconnect()


if __name__ == "__main__":
    main()
