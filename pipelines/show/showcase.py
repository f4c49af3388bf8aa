"""What finished models say to texts they never saw: a few examples for a person's eyes."""

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bert_core.inference import Candidate
from bert_core.model.catalogue import SequenceClassifier
from bert_core.randomness import random_bits
from bert_core.vocabulary import MASK
from pipelines.errors import UserError
from pipelines.predict.answers import answers_to, fill
from pipelines.registry.opening import open_model
from pipelines.stages.corpus.shards import read_documents
from pipelines.stages.dataset.stage import read_items
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker

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
