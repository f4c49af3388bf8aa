"""Labels with character offsets, as doccano, Label Studio and Prodigy export them, as word tags.

A span is `[start, end, label]`, or an object with `start` and `end` (or `start_offset` and
`end_offset`) and a `label` (or `labels` with one name). `end` is the character after the last.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from bert_core.inference.words import places_of_words
from pipelines.tasks import BadItemError

Offsets = Literal["characters", "utf16"]
_TWO_UNITS: Final = re.compile("[\U00010000-\U0010ffff]")  # one character each
_NAMES: Final = {"start": ("start", "start_offset"), "end": ("end", "end_offset")}


class Span(NamedTuple):
    """A label for the characters from `start` to before `end`."""

    start: int
    end: int
    label: str


def spans_in(text: str, values: Any, offsets: Offsets | None) -> list[Span]:
    """The spans of a text in their order; raises BadItemError where they are none of this text.

    Where `offsets` is None they count characters; a span without its own text that would be
    elsewhere in UTF-16 is refused then.
    """
    if not isinstance(values, list):
        raise BadItemError("have a list of spans", f"{values!r:.60}")
    places = _places_of_units(text) if offsets == "utf16" else None
    first = _TWO_UNITS.search(text) if offsets is None else None
    spans = []
    for value in values:
        start, end, label, expected = _read(value)
        if first and expected is None and first.start() < end:
            raise BadItemError(
                "give the text of each span after an emoji or the like, or set "
                "dataset.source.offsets to characters (an emoji counts 1) or utf16 (it counts 2, "
                "as in browsers)", f"{value!r:.80} after {first.group()!r}"
            )  # fmt: skip
        if places is not None:
            start, end = places.get(start, -1), places.get(end, -1)
        held = text[start:end] if 0 <= start < end <= len(text) else ""
        if expected is not None and held != expected:
            raise BadItemError(
                "have spans that hold their own texts (dataset.source.offsets says what places "
                "count: characters, or utf16 as in browsers)", f"{held!r:.40} for {value!r:.80}"
            )  # fmt: skip
        if not held:
            raise BadItemError(
                f"have spans within its text of {len(text)} characters", f"{value!r:.80}"
            )
        spans.append(Span(start, end, label))
    return sorted(spans)


def tagged_words(text: str, spans: list[Span]) -> dict[str, Any]:
    """The words of a text with tags of IOB2, and notes on spans that these do not hold as they are.

    A span that ends within a word has the whole word. Of spans that overlap the first one is taken,
    and of two that begin together the shorter one; one without any word is left out.
    """
    words = places_of_words(text)
    tags, notes = ["O"] * len(words), []
    for span in spans:
        inside = [n for n, word in enumerate(words) if word[0] < span.end and word[1] > span.start]
        shown = f"{text[span.start : span.end]!r:.40} ({span.start} to {span.end}, {span.label})"
        if not inside:
            notes.append(f"{shown} holds no word and is left out")
            continue
        if any(tags[n] != "O" for n in inside):
            notes.append(f"{shown} overlaps another span and is left out")
            continue
        first, last = words[inside[0]][0], words[inside[-1]][1]
        if first < span.start or last > span.end:
            notes.append(f"{shown} becomes whole words: {text[first:last]!r:.40}")
        for n in inside:
            tags[n] = f"{'B' if n == inside[0] else 'I'}-{span.label}"
    return {"words": [text[begin:end] for begin, end in words], "tags": tags, "notes": notes}


def _read(value: Any) -> tuple[int, int, str, str | None]:
    """Start, end and label of a span, and the text that it should hold, where it says so."""
    parts: tuple[Any, ...] = ()
    if isinstance(value, list) and len(value) == 3:
        parts = (*value, None)
    elif isinstance(value, Mapping):
        start, end = (
            next((value[name] for name in names if name in value), None)
            for names in _NAMES.values()
        )
        labels = value.get("labels")
        is_one = isinstance(labels, list) and len(labels) == 1
        label = labels[0] if is_one and labels is not None else value.get("label")
        parts = (start, end, label, value.get("text"))
    if (
        len(parts) == 4
        and all(isinstance(each, int) and not isinstance(each, bool) for each in parts[:2])
        and isinstance(parts[2], str)
        and parts[2].strip()
        and isinstance(parts[3], str | None)
    ):
        return parts[0], parts[1], parts[2].strip(), parts[3]
    raise BadItemError(
        "have spans of [start, end, label], or with start, end and one label", f"{value!r:.80}"
    )


def _places_of_units(text: str) -> dict[int, int]:
    """By the number of UTF-16 units before it, the index of each character, and of the end."""
    places, units = {}, 0
    for index, letter in enumerate(text):
        places[units] = index
        units += 2 if ord(letter) > 0xFFFF else 1
    return {**places, units: len(text)}
