"""Whether a threshold that gives a precision on held-out items gives it on other items, too.

    python benchmarks/thresholds.py --store FOLDER --models SST-2=FINGERPRINT,SST-2=FINGERPRINT

Each model of the store, such as those of `benchmarks/minutes.py`, answers all of its held-out
items; what these are called stands before its fingerprint. Then some of them are drawn at random,
as often as `--draws` says: the threshold is chosen on them, and its precision is measured on the
others. `as counted` takes the threshold from which on so many of the drawn answers are right; `one
more wrong` is the product's, which counts a wrong answer more. A precision that is not reached by
twenty of the drawn answers counts as refused.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.store import ArtifactStore
from pipelines.tasks import Probable, Reading
from pipelines.tasks.calibration import confidence_report

PRECISIONS, SIZES = (0.9, 0.95, 0.99), (200, 500, 1000)
FEWEST_ANSWERS = 20
Rule = Callable[[Probable, float], float | None]


class Trial(NamedTuple):
    """One draw: the precision on the other items, None if none is answered, and how many are."""

    precision: float | None
    answered: float


@torch.inference_mode()
def answers(store: ArtifactStore, fingerprint: str) -> Probable:
    """The probabilities of all held-out items."""
    model = store.find("finetuned", fingerprint)
    assert model is not None
    dataset = store.find("dataset", model.manifest.inputs["dataset"])
    assert dataset is not None
    items, folder = read_items(dataset, "heldout"), model.local_folder()
    encoder = load_model(folder).eval()
    reading = Reading(encoder.config.max_position_embeddings)
    tokenizer = WordPieceTokenizer.from_directory(folder)
    answered = family_of(dataset).answers(encoder, tokenizer, items, reading)
    assert answered.probable is not None
    return answered.probable


def as_counted(heldout: Probable, precision: float) -> float | None:
    """The least probability from which on at least `precision` of the answers are right."""
    confidences = heldout.probabilities.max(axis=1)
    order = np.argsort(-confidences, kind="stable")
    is_right = (heldout.probabilities.argmax(axis=1) == heldout.classes)[order]
    numbers = np.arange(1, len(order) + 1)
    is_last = np.append(np.diff(confidences[order]) < 0, True)
    is_reached = np.cumsum(is_right) / numbers >= precision
    places = np.flatnonzero(is_last & is_reached & (numbers >= FEWEST_ANSWERS))
    return float(confidences[order][places[-1]]) if len(places) else None


def one_more_wrong(heldout: Probable, precision: float) -> float | None:
    """The product's threshold."""
    rows = confidence_report(heldout)["precision"]
    threshold: float | None = next(
        row["min_confidence"] for row in rows if row["precision"] == precision
    )
    return threshold


def trial(rule: Rule, precision: float, probable: Probable, order: NDArray, size: int) -> Trial:
    """Choose on the first `size` items of `order`, measure on the others."""
    heldout, others = (
        Probable(probable.probabilities[part], probable.classes[part])
        for part in (order[:size], order[size:])
    )
    threshold = rule(heldout, precision)
    if threshold is None:
        return Trial(None, 0)
    is_answered = others.probabilities.max(axis=1) >= threshold
    is_right = others.probabilities.argmax(axis=1) == others.classes
    if not is_answered.any():
        return Trial(None, 0)
    return Trial(float(is_right[is_answered].mean()), float(is_answered.mean()))


def cell(trials: Sequence[Trial], precision: float) -> str:
    """Mean precision, how many of the thresholds miss by a point, what is answered, refusals."""
    precisions = np.array([each.precision for each in trials if each.precision is not None])
    if len(precisions) < len(trials) / 100:
        return "refused"
    missed = (precisions < precision - 0.01).mean()
    answered = np.mean([each.answered for each in trials if each.precision is not None])
    refused = 1 - len(precisions) / len(trials)
    return f"{precisions.mean():.1%}, {missed:.0%}, {answered:.0%}, {refused:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--models", required=True, type=lambda names: names.split(","))
    parser.add_argument("--draws", type=int, default=400, help="for each model")
    arguments = parser.parse_args()
    by_data: dict[str, list[Probable]] = {}
    for model in arguments.models:
        name, _, fingerprint = model.partition("=")
        probable = answers(ArtifactStore(arguments.store), fingerprint)
        by_data.setdefault(name, []).append(probable)
        print(name, fingerprint, len(probable.classes), flush=True)
    rules: dict[str, Rule] = {"as counted": as_counted, "one more wrong": one_more_wrong}
    lines = [
        f"{arguments.draws} draws for each model. Precision on the other items (mean), thresholds "
        "that miss what was asked for by more than a point, share of the other items that is "
        "answered, and draws in which the precision was refused.",
        "",
        f"| items (models) | drawn | asked for | {' | '.join(rules)} |",
        f"|---|---|---|{'---|' * len(rules)}",
    ]
    for name, size, precision in itertools.product(by_data, SIZES, PRECISIONS):
        cells = []
        for rule in rules.values():
            generator = np.random.default_rng(0)
            trials = [
                trial(rule, precision, each, generator.permutation(len(each.classes)), size)
                for each in by_data[name]
                for _ in range(arguments.draws)
            ]
            cells.append(cell(trials, precision))
        place = f"{name} ({len(by_data[name])}) | {size} | {precision:.0%}"
        lines.append(f"| {place} | {' | '.join(cells)} |")
    report("thresholds", "Whether a precision on held-out items holds on others", lines)


if __name__ == "__main__":
    main()
