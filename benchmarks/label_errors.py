"""Wrong labels found among planted ones: ours beside cleanlab, on three data sets.

    python benchmarks/label_errors.py --encoder FOLDER      # needs cleanlab

One label in twenty is changed to another class. Every method ranks all items and gets as many
guesses as there are wrong labels, so precision and recall are one figure. `cleanlab` (filter by its
default, ranked by self-confidence) gets out-of-fold probabilities of TF-IDF of words, of words and
characters, and of a linear model over the encoder's vectors. The fine-tuned model, which was
trained on four fifths of these labels, is asked how probable it finds them.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from benchmarks.tasks import DATA, GLUE
from bert_core.inference.pretrained import embed
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.cluster import connect, disconnect
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import Items, Reading, family
from pipelines.tasks.suspects import suspects
from pipelines.train.imported import existing_encoder

SHARE = 20  # one label in so many is wrong
Rows = list[tuple[str, str]]


def sentences() -> Rows:
    with (GLUE / "SST-2/train.tsv").open(encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(r["sentence"].strip(), r["label"]) for r in rows if len(r["sentence"].split()) > 4]


def messages() -> Rows:
    text = (DATA / "sms_spam/SMSSpamCollection.tsv").read_text(encoding="utf-8")
    return [(line.split("\t")[1], line.split("\t")[0]) for line in text.splitlines()]


def reviews() -> Rows:
    with (DATA / "imdb/labelled.csv").open(encoding="utf-8") as file:
        return [(" ".join(r["text"].split()[:100]), r["label"]) for r in csv.DictReader(file)]


DATA_SETS = {
    "SST-2": (sentences, 2000), "SMS": (messages, 2000), "film reviews": (reviews, 800)
}  # fmt: skip


def different(rows: Rows, count: int) -> Rows:
    """The first `count` in a random order, each text once."""
    order = np.random.default_rng(0).permutation(len(rows))
    texts: dict[str, tuple[str, str]] = {}
    for place in order:
        texts.setdefault(" ".join(rows[place][0].lower().split()), rows[place])
    return [row for text, row in texts.items() if text][:count]


def with_wrong_labels(rows: Rows) -> tuple[Rows, set[int]]:
    labels = sorted({label for _, label in rows})
    random = np.random.default_rng(1)
    wrong = set(random.choice(len(rows), len(rows) // SHARE, replace=False).tolist())
    return [
        (text, labels[(labels.index(label) + 1) % len(labels)] if place in wrong else label)
        for place, (text, label) in enumerate(rows)
    ], wrong


def opened(folder: Path, encoder: Path) -> tuple[StageContext, Artifact]:
    """A store in `folder`, one training run at a time, and the published encoder in it."""
    folder.mkdir(parents=True, exist_ok=True)
    store = ArtifactStore(str(folder.absolute() / "store"))
    context = StageContext(store=store, runtime=RuntimeSettings(num_workers=2, training_workers=1))
    return context, existing_encoder(str(encoder), context)


def model_probabilities(
    path: Path, items: Items, encoder: Artifact, context: StageContext
) -> np.ndarray:
    """[N, C] of the model that the recipe's own settings fine-tune on the file."""
    dataset = build_dataset(DatasetSettings(source=LabelledFile(path=str(path))), None, context)
    folder = build_task_model(FinetuningSettings(), dataset, encoder, context).local_folder()
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    reading = Reading(model.config.max_position_embeddings)
    answers = family("classification").answers(model, tokenizer, items, reading)
    assert answers.probable is not None
    return answers.probable.probabilities


def out_of_fold(model: Any, inputs: Any, classes: np.ndarray) -> np.ndarray:
    """[N, C] as cleanlab's guides make them."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    probabilities: np.ndarray = cross_val_predict(
        model, inputs, classes, cv=folds, method="predict_proba"
    )
    return probabilities


def cleanlabs(items: Items, classes: np.ndarray, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """The places that cleanlab ranks first, by the model whose probabilities it gets."""
    from cleanlab.filter import find_label_issues
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = [item["text"] for item in items.rows]
    kinds = ({"ngram_range": (1, 2)}, {"ngram_range": (1, 4), "analyzer": "char_wb"})
    by_words, by_characters = (
        out_of_fold(
            make_pipeline(
                TfidfVectorizer(sublinear_tf=True, min_df=2, **kind),
                LogisticRegression(C=10, max_iter=5000),
            ),
            texts,
            classes,
        )
        for kind in kinds
    )
    by_vectors = out_of_fold(LogisticRegression(max_iter=5000), vectors, classes)
    return {
        name: find_label_issues(classes, each, return_indices_ranked_by="self_confidence")
        for name, each in (
            ("TF-IDF of words", by_words),
            ("TF-IDF of both", (by_words + by_characters) / 2),
            ("encoder's vectors", by_vectors),
        )
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", required=True, type=Path, help="folder of a published encoder")
    parser.add_argument("--description", default="", help="of the encoder")
    parser.add_argument("--folder", type=Path, default=Path("build/label-errors"))
    arguments = parser.parse_args()
    context, encoder = opened(arguments.folder, arguments.encoder)
    connect()
    lines = [
        f"{arguments.description or arguments.encoder.name}; one label in {SHARE} is wrong, and "
        "every method names as many items as there are wrong labels. In percent: how many of these "
        "are wrong (precision, and recall).",
        "",
        "| items | wrong | ours | ours without an encoder | cleanlab, TF-IDF of words | cleanlab, "
        "TF-IDF of both | cleanlab, encoder's vectors | the fine-tuned model |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (read, count) in DATA_SETS.items():
        rows, wrong = with_wrong_labels(different(read(), count))
        path = arguments.folder / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        labels = tuple(sorted({label for _, label in rows}))
        items = Items(
            [{"text": text, "second_text": None, "label": label} for text, label in rows], labels
        )
        classes = np.array([labels.index(label) for _, label in rows])
        folder = encoder.local_folder()
        tokenizer = WordPieceTokenizer.from_directory(folder)
        texts = [text for text, _ in rows]
        vectors = np.asarray(embed(load_model(folder), tokenizer, texts).vectors)
        of_label = model_probabilities(path, items, encoder, context)[np.arange(len(rows)), classes]
        ranked = [
            [each.row for each in suspects(items, texts, vectors, len(wrong))],
            [each.row for each in suspects(items, texts, None, len(wrong))],
            *(places[: len(wrong)] for places in cleanlabs(items, classes, vectors).values()),
            np.argsort(of_label, kind="stable")[: len(wrong)],
        ]
        cells = [f"{100 * len(wrong & set(map(int, each))) / len(wrong):.0f}" for each in ranked]
        lines.append(f"| {name}, {len(rows):,} | {len(wrong)} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    disconnect()
    report("label_errors", "Wrong labels found among planted ones", lines)


if __name__ == "__main__":
    main()
