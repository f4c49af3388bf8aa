"""How sure fine-tuned models are, on items of three data sets and on texts of another kind.

    python benchmarks/confidence.py --encoder FOLDER

Each model is fine-tuned as a recipe does it, with a fifth of the items held out and some hundred of
the others set aside for its temperature. The precisions are promised by held-out items, and kept or
not on fresh ones. Foreign texts are paragraphs of old novels. Beside the probability stands
Mahalanobis' distance (Lee et al., 2018) of the mean of the last hidden states from the nearest
class of the training items: a text is near that is no farther than 95% of the held-out items.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from benchmarks.label_errors import Rows, different, messages, opened, reviews, sentences
from benchmarks.tasks import DATA, GLUE
from bert_core.inference.answers import classify
from bert_core.inference.confidence import CONFIDENCE_FILE
from bert_core.inference.pretrained import embed
from bert_core.model.catalogue import SequenceClassifier
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.cluster import connect, disconnect
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.stages.evaluation import build_evaluation
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.store import Artifact

PRECISIONS = (0.9, 0.95)
FOREIGN = 1000


def development_sentences() -> Rows:
    with (GLUE / "SST-2/dev.tsv").open(encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"].strip(), row["label"]) for row in rows]


def novels() -> list[str]:
    """Paragraphs of 20 to 60 words."""
    texts = []
    for path in sorted((DATA / "corpus/english_novels").rglob("*.txt")):
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            words = block.split()
            if 20 <= len(words) <= 60:
                texts.append(" ".join(words))
    order = np.random.default_rng(0).permutation(len(texts))[:FOREIGN]
    return [texts[place] for place in order]


def data_sets() -> dict[str, tuple[Rows, Rows]]:
    """By name, the labelled file and fresh items."""
    spam, films = different(messages(), 5000), different(reviews(), 2250)
    return {
        "SST-2": (different(sentences(), 2500), development_sentences()),
        "SMS": (spam[:2500], spam[2500:]),
        "film reviews": (films[:1250], films[1250:]),
    }


def distances(learned: np.ndarray, labels: Sequence[str], asked: np.ndarray) -> np.ndarray:
    """[N] Mahalanobis' distances from the nearest class, whose covariance is that of all."""
    classes = np.array(labels)
    means = {label: learned[classes == label].mean(axis=0) for label in set(labels)}
    centred = learned - np.stack([means[label] for label in labels])
    precision = np.linalg.pinv(np.cov(centred.T) + 1e-6 * np.eye(learned.shape[1]))
    every = [
        np.einsum("nd,de,ne->n", asked - mean, precision, asked - mean) for mean in means.values()
    ]
    nearest: np.ndarray = np.min(every, axis=0)
    return nearest


def rows_of(
    name: str, dataset: Artifact, evaluation: Artifact, finetuned: Artifact, fresh: Rows
) -> list[str]:
    """A row a precision."""
    folder = finetuned.local_folder()
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    assert isinstance(model, SequenceClassifier)
    train, heldout = (read_items(dataset, split).rows for split in ("train", "heldout"))
    foreign = novels()
    of_fresh = classify(model, tokenizer, [text for text, _ in fresh])
    of_foreign = classify(model, tokenizer, foreign)
    is_right = np.array([a == b for a, (_, b) in zip(of_fresh.labels, fresh, strict=True)])
    vectors = [
        np.asarray(embed(model, tokenizer, texts, pooling="mean", normalize=False).vectors, float)
        for texts in ([r["text"] for r in train], [r["text"] for r in heldout], foreign)
    ]
    labels = [row["label"] for row in train]
    usual, far = (distances(vectors[0], labels, each) for each in vectors[1:])
    is_near = far < np.quantile(usual, 0.95)
    table = json.loads(evaluation.local(CONFIDENCE_FILE).read_text(encoding="utf-8"))
    figures = evaluation.statistics
    lines = []
    for row in table["precision"]:
        if row["precision"] not in PRECISIONS or row["min_confidence"] is None:
            continue
        answered = of_fresh.probabilities.max(axis=1) >= row["min_confidence"]
        answered_foreign = of_foreign.probabilities.max(axis=1) >= row["min_confidence"]
        lines.append(
            f"| {name} | {len(train):,} / {len(heldout):,} / {len(fresh):,} | "
            f"{100 * figures['eval/accuracy']:.1f} | "
            f"{100 * figures['confidence/uncalibrated_calibration_error']:.1f}, "
            f"**{100 * figures['confidence/calibration_error']:.1f}** | "
            f"{figures['confidence/uncalibrated_log_loss']:.3f}, "
            f"**{figures['confidence/log_loss']:.3f}** | {row['precision']:.0%} | "
            f"{row['min_confidence']:.3f} | {answered.mean():.1%} | "
            f"**{is_right[answered].mean():.1%}** | {answered_foreign.mean():.1%} | "
            f"{(answered_foreign & is_near).mean():.1%} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", required=True, type=Path, help="folder of a published encoder")
    parser.add_argument("--description", default="", help="of the encoder")
    parser.add_argument("--folder", type=Path, default=Path("build/confidence"))
    arguments = parser.parse_args()
    context, encoder = opened(arguments.folder, arguments.encoder)
    connect()
    lines = [
        f"{arguments.description or arguments.encoder.name}, fine-tuned with the recipe's own "
        "settings, one run each. Of calibration error (percent, ten bins) and log loss the first "
        f"figure is without the temperature. Foreign: {FOREIGN:,} paragraphs of novels that are "
        "answered all the same; near: of these, those that Mahalanobis' distance does not refuse "
        "(it refuses 5% of the held-out items, too).",
        "",
        "| items | learned / held out / fresh | accuracy, held out | calibration error | log loss "
        "| asked for | from probability | fresh answered | of these right | foreign answered "
        "| near |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (labelled, fresh) in data_sets().items():
        path = arguments.folder / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *labelled])
        dataset = build_dataset(DatasetSettings(source=LabelledFile(path=str(path))), None, context)
        finetuned = build_task_model(FinetuningSettings(), dataset, encoder, context)
        evaluation = build_evaluation(finetuned, dataset, context)
        lines += rows_of(name, dataset, evaluation, finetuned, fresh)
        print("\n".join(lines[-2:]), flush=True)
    disconnect()
    report("confidence", "How sure fine-tuned models are", lines)


if __name__ == "__main__":
    main()
