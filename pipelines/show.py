"""Pictures of what was learned, as PNG bytes: drawn without a display, by any thread."""

import csv
import heapq
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bert_core.hugging_face import export_model
from bert_core.inference import Candidate
from bert_core.model.catalogue import SequenceClassifier
from bert_core.randomness import random_bits
from bert_core.vocabulary import MASK
from pipelines.errors import UserError
from pipelines.predict.answers import answers_to, fill
from pipelines.registry.package import open_model, opened
from pipelines.stages.corpus.shards import read_documents
from pipelines.stages.dataset.stage import read_items
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker, time_for_files

_DOTS_PER_INCH = 110
_INCHES = (5.2, 3.2)  # of one panel
_COLOURS = ("#1f6f8b", "#d1603d", "#5b8c5a", "#7d5ba6", "#b8860b", "#4a4a4a")
_FOLDER = "hugging_face"  # of the run, opens with transformers' Auto classes
_MOST_CLASSES = 40  # of a matrix that can be read


@dataclass(frozen=True, slots=True)
class Panel:
    """One coordinate system: curves over optimizer steps, and levels to compare them with."""

    title: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]  # name -> (steps, values)
    levels: Mapping[str, float] = field(default_factory=dict)  # drawn as dashed lines
    is_share: bool = False  # values lie between 0 and 1 and read as percent


def draw(panels: Sequence[Panel]) -> bytes:
    """The panels side by side, as a PNG."""
    width, height = _INCHES
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.set_prop_cycle(color=_COLOURS)
        for name, (steps, values) in panel.curves.items():
            axes.plot(steps, values, label=name, marker=_marker(steps), markersize=3)
        for name, level in panel.levels.items():
            axes.axhline(level, label=name, color="#888888", linestyle="--", linewidth=1)
        axes.set_title(panel.title, fontsize=11)
        axes.set_xlabel("optimizer step")
        if panel.is_share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    return png_of(figure)


def training_panels(
    history: Sequence[Mapping[str, Any]], statistics: Mapping[str, Any]
) -> list[Panel]:
    """The losses, and the accuracies beside their baselines, of a training run's curve.

    `history` is a training run's list of points, each with its `step`; `statistics` may hold
    `baseline/<name>` for a curve `eval/<name>`. Of kinds of tokens the content words are drawn.
    """
    panels = []
    for title, word, is_share in (("Loss", "loss", False), ("Accuracy", "accuracy", True)):
        endings = word, f"{word}/content"
        names = sorted(
            {
                name
                for point in history
                for name in point
                if name.endswith(endings) and not name.startswith("baseline/")
            }
        )
        curves = {name: _curve(history, name) for name in names}
        if not curves:
            continue
        levels = {
            f"baseline of {name}": float(statistics[key])
            for name in names
            if (key := f"baseline/{name.removeprefix('eval/')}") in statistics
        }
        panels.append(Panel(title, curves, levels, is_share))
    return panels


def _marker(steps: Sequence[float]) -> str | None:
    """Few points are shown as points; many only as the line through them."""
    return "o" if len(steps) < 40 else None


def _curve(history: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    points = [point for point in history if name in point]
    return [point["step"] for point in points], [point[name] for point in points]


def confusion_picture(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> bytes:
    """The confusion matrix as a PNG: a row an expected, a column an answered class."""
    size = 2.5 + 0.45 * len(labels)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    axes.imshow(confusion, cmap="Blues")
    axes.set_xticks(range(len(labels)), labels, rotation=90)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("answered")
    axes.set_ylabel("expected")
    most = max((max(row) for row in confusion), default=0)
    for row, counts in enumerate(confusion):
        for column, count in enumerate(counts):
            colour = "white" if 2 * count > most else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour)
    return png_of(figure)


def png_of(figure: Figure) -> bytes:
    """The figure as a PNG, drawn without a display."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DOTS_PER_INCH)
    return stream.getvalue()


def log_evidence(
    tracker: Tracker, run_id: str, model: Artifact, evaluation: Artifact | None = None
) -> list[str]:
    """Keep with the run pictures and tables of `model`; the names of the files.

    Its curves; of an evaluation the report, a table by label and the confusion matrix; and the
    model as `transformers` opens it, or why that cannot be. Raises MlflowException where the
    tracker does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-evidence-") as scratch:
        folder = Path(scratch) / "files"
        folder.mkdir()
        if "history.json" in model.names():
            history = json.loads(model.local("history.json").read_text())
            panels = training_panels(history, model.statistics)
            if panels:
                (folder / "curves.png").write_bytes(draw(panels))
        if evaluation is not None:
            text = evaluation.local("report.json").read_text(encoding="utf-8")
            (folder / "report.json").write_text(text, encoding="utf-8")
            _write_tables(folder, json.loads(text))
        try:
            export_model(folder / _FOLDER, *opened(model.local_folder()))
        except (ValueError, KeyError) as error:  # a head that no class of theirs has
            said = f"transformers has no class for this model: {error}\n"
            (folder / f"{_FOLDER}.txt").write_text(said, encoding="utf-8")
        with time_for_files():
            tracker.client().log_artifacts(run_id, str(folder))
        return sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )


def _write_tables(folder: Path, report: Mapping[str, Any]) -> None:
    if report.get("by_label"):
        with (folder / "by_label.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(report["by_label"][0]))
            writer.writeheader()
            writer.writerows(report["by_label"])
    if "confusion" in report:
        labels, confusion = report["labels"], report["confusion"]
        with (folder / "confusion.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["expected \\ answered", *labels])
            rows.writerows([label, *row] for label, row in zip(labels, confusion, strict=True))
        if len(labels) <= _MOST_CLASSES:
            (folder / "confusion.png").write_bytes(confusion_picture(labels, confusion))


VOCABULARY_FILE = "vocab.txt"
_WORD = re.compile(r"[^\W\d_]{4,}")
_WORDS_OF_A_SENTENCE = range(8, 17)  # long enough to give a hint, short enough for one line
_EXAMPLES = 3
_CANDIDATES = 4
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The label of a text."""

    text: str
    label: str
    probability: float


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
    tokens = set(vocabulary.local(VOCABULARY_FILE).read_text(encoding="utf-8").split("\n"))
    drawn = heapq.nsmallest(_EXAMPLES, _gaps(corpus, tokens))
    opened = open_model(tracker, reference)
    return [
        FilledMask(
            text=text,
            hidden=hidden,
            candidates=fill(opened, reference, text, top_k=_CANDIDATES)[0],
        )
        for _, text, hidden in drawn
    ]


def predictions(
    tracker: Tracker, reference: str, dataset: Artifact
) -> list[tuple[str, Prediction]]:
    """Labels of some held-out texts, and what the classifier `reference` names answers to each.

    Texts are drawn by hash, another label each while there are labels left. Raises UserError
    where `reference` names no classifier.
    """
    heldout = read_items(dataset, "heldout").rows
    order = _one_of_each([item["label"] for item in heldout])
    drawn = [heldout[index] for index in order[:_EXAMPLES]]
    model, tokenizer = open_model(tracker, reference)
    if not isinstance(model, SequenceClassifier):
        raise UserError(f"{reference} is no classifier, whose answers to texts could be shown")
    columns = {name: [item[name] for item in drawn] for name in ("text", "second_text")}
    answers = answers_to(model, tokenizer, columns)
    return [
        (
            item["label"],
            Prediction(
                text=" | ".join(filter(None, (item["text"], item["second_text"]))),
                label=label,
                probability=probability,
            ),
        )
        for item, label, probability in zip(
            drawn, answers["label"], answers["probability"], strict=True
        )
    ]


def _one_of_each(labels: Sequence[str]) -> list[int]:
    """Indices in the order of their draw: the first of every label, then the second, and so on."""
    order = sorted(range(len(labels)), key=lambda index: random_bits(_SEED, "showcase", index))
    earlier: Counter[str] = Counter()
    rounds = {}
    for index in order:
        rounds[index] = earlier[labels[index]]
        earlier[labels[index]] += 1
    return sorted(order, key=rounds.__getitem__)


def _gaps(corpus: Artifact, tokens: set[str]) -> Iterator[tuple[int, str, str]]:
    """(draw, text with a gap, hidden word) of each held-out sentence that can have one."""
    for number, document in enumerate(read_documents(corpus, "heldout")):
        for sentence in document.sentences:
            if len(sentence.split()) not in _WORDS_OF_A_SENTENCE or MASK in sentence:
                continue
            words = [word for word in _WORD.finditer(sentence) if word.group().lower() in tokens]
            if not words:
                continue
            draw = int(random_bits(_SEED, "showcase", number))
            word = words[draw % len(words)]
            text = sentence[: word.start()] + MASK + sentence[word.end() :]
            yield draw, text, word.group()
            break  # one sentence a document is plenty
