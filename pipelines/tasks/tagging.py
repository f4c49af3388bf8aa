"""A tag for every word of a sentence: names of people and places, parts of speech.

Entities are scored as by `conlleval`, Tjong Kim Sang and De Meulder (2003): an entity is right
where its first word, its last word and its type are. Tags are `O`, or a prefix of IOB1, IOB2, BIOES
or BILOU, `-` and a type.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_core.batch import IGNORED_LABEL
from bert_core.inference.answers import sequences_of
from bert_core.inference.texts import WordWindow, word_windows
from bert_core.inference.words import entities, have_prefixes
from bert_core.model.catalogue import Model, TokenClassifier
from bert_core.model.task_models import class_names
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import (
    Answers,
    BadItemError,
    Baselines,
    Form,
    Item,
    Items,
    Reading,
    TaskFamily,
    by_split,
)
from pipelines.tasks.encoding import Sequences, check_classes, check_distinct, share
from pipelines.tasks.scoring import WeightedScore, class_report, ratio
from pipelines.tasks.spans import spans_in, tagged_words
from pipelines.train.ranks import sum_over_ranks

_OUTSIDE = "O"
_ALMOST = re.compile(r"[BIESLUM][-_:–—－].+|.+[-_][BIESLUM]", re.IGNORECASE)
_LETTERS = frozenset("BIESLUM")


class Tagging(TaskFamily):
    """The tag of every word. Sentences longer than is read are read in windows.

    Scored by entities where tags have prefixes (IOB1, IOB2, BIOES, BILOU), else by words: then
    precision, recall and F1 are the share of words whose tag is right.
    """

    form: Form = "words"
    score = "eval/f1"
    curve: Mapping[str, str] = {"label_loss": "eval/loss", "label_accuracy": "eval/word_accuracy"}
    model = TokenClassifier
    schema = pa.schema({"words": pa.list_(pa.string()), "tags": pa.list_(pa.string())})

    def item(self, record: Mapping[str, Any]) -> Item:
        """A sentence's words with as many tags; raises BadItemError for other numbers of these.

        Likewise for a word without a tag, and for tags without names. In place of words and tags
        may stand a text and its spans: see `tagged_words`.
        """
        if isinstance(record["words"], str):
            spans = spans_in(record["words"], record["tags"], record["offsets"])
            record = tagged_words(record["words"], spans)
        words, tags = record["words"], record["tags"]
        if not isinstance(words, list) or not isinstance(tags, list):
            raise BadItemError("have a list of words and one of tags", f"{words!r:.60}")
        if not all(isinstance(word, str) for word in words):
            raise BadItemError("have texts as its words", f"{words!r:.60}")
        if len(words) != len(tags):
            raise BadItemError("have a tag for every word", f"{len(tags)} for {len(words)}")
        if not words or "" in words:
            raise BadItemError("have words", f"an empty one in {words!r:.60}" if words else "none")
        nameless = [tag for tag in tags if not isinstance(tag, str)]
        if nameless:
            what = "the number " if isinstance(nameless[0], int | float) else ""
            raise BadItemError(
                "have the names of its tags, which a dataset's own Parquet files and folders know",
                f"{what}{nameless[0]!r:.60}",
            )
        if "" in tags:
            raise BadItemError("have a tag for every word", f"none for {words[tags.index('')]!r}")
        notes = {"notes": record["notes"]} if record.get("notes") else {}
        return {"words": words, "tags": tags, **notes}

    def group(self, item: Item) -> str:
        return " ".join(item["words"])

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """The tags of the training part; raises UserError where it has fewer than two.

        Likewise for tags of which only some are of a scheme that entities are scored by.
        Held-out tags that no training sentence has are never answered, and count as missed.
        """
        tags = sorted({tag for item in train for tag in item["tags"]})
        if len(tags) < 2:
            raise UserError(
                f"a tagger needs at least two tags to tell apart, found {tags}; the last column "
                "of a CoNLL file holds the tags"
            )
        every = [tag for item in (*train, *heldout) for tag in item["tags"]]
        name_entities(every)
        check_distinct(every)
        num_words = sum(len(item["words"]) for item in train)
        advice = "that the last column of a CoNLL file holds the tags"
        check_classes(tags, num_words, "words", advice)
        return tuple(tags)

    def unknown_classes(self, items: Items) -> list[str]:
        """The tags that `items.labels` lack; of entities those whose type none of these has.

        An entity counts as the same in every scheme of tags.
        """
        tags = {tag for item in items.rows for tag in item["tags"]}
        unknown = tags - {*items.labels}
        if have_prefixes([*tags, *items.labels]):
            types = {_type_of(tag) for tag in items.labels}
            unknown = {tag for tag in unknown if _type_of(tag) not in types}
        return sorted(unknown)

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """Words by part and by tag, and the tags that are held out alone."""
        counts = Counter(tag for item in train.rows for tag in item["tags"])
        here = {tag for item in heldout.rows for tag in item["tags"]}
        return {
            "words": by_split(train, heldout, lambda rows: sum(len(i["words"]) for i in rows)),
            "words_by_tag": dict(sorted(counts.items())),
            "only_held_out": sorted(here - set(train.labels)),
        }

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        return {"most frequent tag": _most_frequent_tags(train, heldout)}

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        """Windows of the sentences; each word's tag is asked for once, at its first token."""
        index = {label: place for place, label in enumerate(items.labels)}
        windows = _windows(items, tokenizer, reading)
        labels = []
        for number, window in windows:
            tags = items.rows[number]["tags"]
            row = np.full(len(window.sequence), IGNORED_LABEL)
            row[window.places] = [index.get(tags[word], IGNORED_LABEL) for word in window.words]
            labels.append(row)
        return Sequences(encoded=sequences_of([window for _, window in windows]), labels=labels)

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """The tag of every word of each sentence."""
        assert isinstance(model, TokenClassifier)
        ends = np.cumsum([len(item["words"]) for item in items.rows])
        firsts = ends - [len(item["words"]) for item in items.rows]
        chosen = np.zeros(int(ends[-1]), np.int64)
        windows = _windows(items, tokenizer, reading)
        for members, tokens in share(sequences_of([window for _, window in windows]), reading):
            rows = model(tokens).float().argmax(dim=-1).split(tokens.lengths)
            for member, best in zip(members.tolist(), rows, strict=True):
                number, window = windows[member]
                chosen[firsts[number] + np.array(window.words)] = best[window.places].numpy()
        names = class_names(model)
        tags = [names[index] for index in sum_over_ranks(chosen)]
        values = [tags[first:end] for first, end in zip(firsts, ends, strict=True)]
        return Answers(values, 0)

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Entity-level precision, recall and F1, as conlleval counts them, and word accuracy."""
        expected = [item["tags"] for item in items.rows]
        right = [
            sum(a == b for a, b in zip(predicted, actual, strict=True))
            for predicted, actual in zip(answers.values, expected, strict=True)
        ]
        accuracy = ratio(right, [len(tags) for tags in expected])
        scores = dict.fromkeys(("eval/precision", "eval/recall", "eval/f1"), accuracy)
        if name_entities(chain.from_iterable((*answers.values, *expected))):
            scores = entity_scores(answers.values, expected)
        return {**scores, "eval/word_accuracy": accuracy}

    def report(self, answers: Answers, items: Items) -> dict[str, Any]:
        """Precision, recall, F1 and count of each type of entity, or of each tag; confusions."""
        expected = [item["tags"] for item in items.rows]
        words = class_report(
            [tag for tags in answers.values for tag in tags],
            [tag for tags in expected for tag in tags],
        )
        if not name_entities(chain.from_iterable((*answers.values, *expected))):
            return words
        by_label = entity_report(answers.values, expected)
        return {**words, "by_label": by_label, "entities": sum(row["items"] for row in by_label)}


FAMILY = Tagging()


def _type_of(tag: str) -> str:
    """What an entity's tag says without its prefix; nothing for `O`."""
    return tag.partition("-")[2]


def _most_frequent_tags(train: Items, heldout: Items) -> list[list[str]]:
    """Of each held-out word the tag that it has most often; of an unknown one `O`, if there is."""
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    counts: Counter[str] = Counter()
    for item in train.rows:
        counts.update(item["tags"])
        for word, tag in zip(item["words"], item["tags"], strict=True):
            by_word[word][tag] += 1
    tags = {word: min(count, key=lambda tag: (-count[tag], tag)) for word, count in by_word.items()}
    unknown = _OUTSIDE if _OUTSIDE in counts else counts.most_common(1)[0][0]
    return [[tags.get(word, unknown) for word in item["words"]] for item in heldout.rows]


def _windows(
    items: Items, tokenizer: WordPieceTokenizer, reading: Reading
) -> list[tuple[int, WordWindow]]:
    """Windows over all sentences, each with its sentence's index.

    A word of which the tokenizer leaves nothing is [UNK], so that every word gets a tag.
    """
    flat = [word for item in items.rows for word in item["words"]]
    tokens = iter([ids or [tokenizer.unk_id] for ids in tokenizer.encode_batch(flat)])
    return [
        (number, window)
        for number, item in enumerate(items.rows)
        for window in word_windows(
            tokenizer, [next(tokens) for _ in item["words"]], reading.max_tokens
        )
    ]


def name_entities(tags: Iterable[str]) -> bool:
    """Whether the tags mark entities: all are `O` or have a published prefix; else they are words'.

    Raises UserError for tags of which some have such a prefix, and for those that only look so.
    """
    different = sorted({*tags} - {_OUTSIDE})
    others = [tag for tag in different if not have_prefixes([tag])]
    is_mixed = 0 < len(others) < len(different)
    is_almost = any(map(_ALMOST.fullmatch, others)) or (others and {*others} <= _LETTERS)
    if is_mixed or is_almost:
        raise UserError(
            f"the tags {', '.join(others[:5])} are of no scheme that entities are scored by: write "
            "O outside of them, and inside B-TYPE and I-TYPE (IOB), or the tags of BIOES or BILOU; "
            "tags of single words, such as parts of speech, have no such prefix at all"
        )
    return not others


def entity_scores(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> dict[str, WeightedScore]:
    """Precision, recall and F1 over all entities; 0 where there is nothing to divide by."""
    sentences = [
        (set(entities(predicted)), set(entities(actual)))
        for predicted, actual in zip(answered, expected, strict=True)
    ]
    num_predicted, num_actual = (
        np.array([len(each) for each in side]) for side in zip(*sentences, strict=True)
    )
    right = np.array([len(predicted & actual) for predicted, actual in sentences])
    precision, recall = ratio(right, num_predicted), ratio(right, num_actual)
    return {
        "eval/precision": precision,
        "eval/recall": recall,
        "eval/f1": lambda weights: _harmonic_mean(precision(weights), recall(weights)),
    }


def entity_report(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """A row a type of entity, in alphabetical order: precision, recall, F1 and their number."""
    predicted, actual = (
        {(number, entity) for number, tags in enumerate(side) for entity in entities(tags)}
        for side in (answered, expected)
    )
    num_predicted, num_actual, right = (
        Counter(entity.type for _, entity in each)
        for each in (predicted, actual, predicted & actual)
    )
    rows = []
    for kind in sorted({*num_predicted, *num_actual}):
        precision = right[kind] / num_predicted[kind] if num_predicted[kind] else 0.0
        recall = right[kind] / num_actual[kind] if num_actual[kind] else 0.0
        scores = {"precision": precision, "recall": recall, "f1": _harmonic_mean(precision, recall)}
        rows.append({"label": kind, **scores, "items": num_actual[kind]})
    return rows


def _harmonic_mean(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0
