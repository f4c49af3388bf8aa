"""What a person looks at: curves and confusions as pictures, and masked words filled."""

import heapq
import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bert_core.inference.pretrained import Candidate
from bert_core.randomness import random_bits
from bert_core.vocabulary import MASK
from pipelines.predict.answers import fill
from pipelines.registry.package import open_model
from pipelines.stages.corpus.shards import read_documents
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker, time_for_files

_DOTS_PER_INCH = 110
_INCHES = (5.2, 3.2)  # of one panel
_MOST_CLASSES = 40  # of a matrix that can be read
_WORD = re.compile(r"[^\W\d_]{4,}")
_WORDS_OF_A_SENTENCE = range(8, 17)  # long enough to give a hint, short enough for one line
_EXAMPLES = 8
_CANDIDATES = 4


def curves_picture(history: Sequence[Mapping[str, Any]], statistics: Mapping[str, Any]) -> bytes:
    """A training run's losses and accuracies over its steps, as a PNG of two panels.

    `history` is its list of points, each with its `step`; `statistics` may hold `baseline/<name>`
    for a curve `eval/<name>`, which is drawn as a dashed line.
    """
    width, height = _INCHES
    figure = Figure(figsize=(2 * width, height), layout="constrained")
    names = sorted({name for point in history for name in point})
    for axes, word in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name in names:
            if name.startswith("baseline/") or not name.endswith(word):
                continue
            points = [point for point in history if name in point]
            axes.plot(
                [each["step"] for each in points], [each[name] for each in points], label=name
            )
            baseline = statistics.get(f"baseline/{name.removeprefix('eval/')}")
            if baseline is not None:
                axes.axhline(baseline, label=f"baseline of {name}", color="#888888", linestyle="--")
        axes.set_title(word.capitalize())
        axes.set_xlabel("optimizer step")
        axes.grid(alpha=0.25)
        if axes.lines:
            axes.legend(fontsize=8, frameon=False)
    return _png_of(figure)


def confusion_picture(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> bytes:
    """The confusion matrix as a PNG: a row an expected, a column an answered class."""
    from sklearn.metrics import ConfusionMatrixDisplay

    size = 2.5 + 0.45 * len(labels)
    figure = Figure(figsize=(size, size), layout="constrained")
    display = ConfusionMatrixDisplay(np.array(confusion), display_labels=labels)
    display.plot(
        ax=figure.subplots(), cmap="Blues", colorbar=False, values_format=",d",
        xticks_rotation="vertical",
    ).ax_.set(xlabel="answered", ylabel="expected")  # fmt: skip
    return _png_of(figure)


def reliability_picture(bins: Sequence[Mapping[str, Any]]) -> bytes:
    """How often answers are right by how sure the model is of them, as a PNG.

    On the dashed line probabilities mean what they say; each point's area grows with its answers.
    """
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#888888", linestyle="--", linewidth=1)
    sure, right = ([each[name] for each in bins] for name in ("confidence", "accuracy"))
    axes.plot(sure, right, color="#1f6f8b", linewidth=1)
    total = sum(each["items"] for each in bins)
    axes.scatter(sure, right, [20 + 400 * each["items"] / total for each in bins], color="#1f6f8b")
    for each in bins:
        axes.annotate(
            f"{each['items']:,}", (each["confidence"], each["accuracy"]), (6, -12),
            textcoords="offset points", fontsize=8, color="#555555",
        )  # fmt: skip
    axes.set(xlabel="probability of the answer", ylabel="share of these answers that is right",
             xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal")  # fmt: skip
    axes.grid(alpha=0.25)
    return _png_of(figure)


def _png_of(figure: Figure) -> bytes:
    """The figure as a PNG, drawn without a display, by any thread."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DOTS_PER_INCH)
    return stream.getvalue()


def log_evidence(
    tracker: Tracker, run_id: str, model: Artifact, evaluation: Artifact | None = None
) -> list[str]:
    """Keep with the run the curves of `model`; of an evaluation the report and the confusions.

    Returns the names of the files. Raises MlflowException where the tracker does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-evidence-") as scratch:
        folder = Path(scratch)
        if "history.json" in model.names():
            history = json.loads(model.local("history.json").read_text())
            (folder / "curves.png").write_bytes(curves_picture(history, model.statistics))
        if evaluation is not None:
            text = evaluation.local("report.json").read_text(encoding="utf-8")
            (folder / "report.json").write_text(text, encoding="utf-8")
            report = json.loads(text)
            if "confusion" in report and len(report["labels"]) <= _MOST_CLASSES:
                picture = confusion_picture(report["labels"], report["confusion"])
                (folder / "confusion.png").write_bytes(picture)
            if "confidence" in report:
                picture = reliability_picture(report["confidence"]["reliability"])
                (folder / "reliability.png").write_bytes(picture)
        with time_for_files():
            tracker.client().log_artifacts(run_id, str(folder))
        return sorted(path.name for path in folder.iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledMask:
    """A held-out sentence with one word hidden, and what the encoder would put there."""

    text: str  # with [MASK]
    hidden: str
    candidates: list[Candidate]  # most probable first


def filled_masks(
    tracker: Tracker, reference: str, corpus: Artifact, vocabulary: Artifact
) -> list[FilledMask]:
    """Some held-out sentences with a hidden word, filled by the encoder `reference` names.

    Sentences and words are drawn by hash, not picked: the same for every model of the corpus.
    Raises UserError where `reference` names no encoder.
    """
    tokens = set(vocabulary.local("vocab.txt").read_text(encoding="utf-8").split("\n"))
    drawn = heapq.nsmallest(_EXAMPLES, _gaps(corpus, tokens))
    opened = open_model(tracker, reference)
    return [
        FilledMask(
            text=text, hidden=hidden, candidates=fill(opened, reference, text, top_k=_CANDIDATES)[0]
        )
        for _, text, hidden in drawn
    ]


def _gaps(corpus: Artifact, tokens: set[str]) -> Iterator[tuple[int, str, str]]:
    """(draw, text with a gap, hidden word) of each held-out sentence that can have one."""
    for number, document in enumerate(read_documents(corpus, "heldout")):
        for sentence in document.sentences:
            if len(sentence.split()) not in _WORDS_OF_A_SENTENCE or MASK in sentence:
                continue
            words = [word for word in _WORD.finditer(sentence) if word.group().lower() in tokens]
            if not words:
                continue
            draw = int(random_bits(0, "showcase", number))
            word = words[draw % len(words)]
            text = sentence[: word.start()] + MASK + sentence[word.end() :]
            yield draw, text, word.group()
            break  # one sentence a document is plenty
