"""What a person looks at: the report of an evaluation, and masked words filled."""

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bert_core.inference import Candidate
from bert_core.randomness import random_bits
from bert_core.vocabulary import MASK
from pipelines.predict.answers import fill
from pipelines.registry.package import open_model
from pipelines.stages.corpus.shards import read_documents
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker

_WORD = re.compile(r"[^\W\d_]{4,}")
_WORDS_OF_A_SENTENCE = range(8, 17)  # long enough to give a hint, short enough for one line
_EXAMPLES = 3
_CANDIDATES = 4


def log_evidence(tracker: Tracker, run_id: str, evaluation: Artifact) -> None:
    """Keep the report of an evaluation with the run; MLflow draws the curves itself.

    Raises MlflowException where the tracker does not answer.
    """
    report = evaluation.local("report.json").read_text(encoding="utf-8")
    tracker.log_text(run_id, report, "report.json")


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
            text=text,
            hidden=hidden,
            candidates=fill(opened, reference, text, top_k=_CANDIDATES)[0],
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
