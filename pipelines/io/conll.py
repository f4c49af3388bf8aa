"""CoNLL's columns: a word and its tag a line, an empty line after a sentence."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from pipelines.errors import UserError
from pipelines.io.files import check_no_mark, open_text

_BLANKS: Final = re.compile(" +")
_LONGEST_SENTENCE, _FEW_TAGS = 500, 10
# A comment ("# sent_id = 1", "# newdoc"), or ten columns of which the first is a number.
_CONLL_U: Final = re.compile(r"# *\S+ *= |# +(newdoc|newpar|id|text)\b|\d+([-.]\d+)?(\t[^\t]*){9}$")
_MERGE: Final = re.compile(r"(<{7}|>{7}|\|{7}) \S|={7}$")
_NAMES_OF_COLUMNS: Final = re.compile(
    r"(words?|tokens?|form|text)[ \t](.*[ \t])?((ner|pos)_)?(tags?|labels?|pos|upos|xpos|ner)", re.I
)


class TaggedSentence(NamedTuple):
    """The words of a sentence and a tag for each, and the line of the first one, from 1."""

    line: int
    words: list[str]
    tags: list[str]


def tagged_sentences(path: str, encoding: str) -> Iterator[TaggedSentence]:
    """The sentences of a file.

    Tabs separate the columns of a file whose first line has any, and blanks those of the others.
    The word is in the first column and the tag in the last. `-DOCSTART-` lines are passed over.
    Raises UserError for a line that is none, for names of columns, for CoNLL-U, for a long file
    without an empty line, where the first column of three or more holds numbers, or the name of the
    sentence, and where the last one has more different values than the first.
    """
    different_words: set[str] = set()
    different_tags: set[str] = set()
    varies = False
    width = longest = num_sentences = 0
    words: list[str] = []
    tags: list[str] = []
    first = 0
    separator: str | None = None
    with open_text(path, encoding) as lines:
        for number, line in enumerate(chain(lines, [""]), start=1):
            text = line.strip("\r\n")
            check_no_mark(text, f"line {number:,} of {path}")
            if not text.strip("\t "):
                if words:
                    different_words.update(words)
                    different_tags.update(tags)
                    varies |= len({*words}) > 1
                    longest = max(longest, len(words))
                    num_sentences += 1
                    yield TaggedSentence(first, words, tags)
                words, tags = [], []
                continue
            if text.startswith("-DOCSTART-"):
                continue
            if _MERGE.match(text):
                raise UserError(f"line {number:,} of {path} is of a merge that was not finished")
            if _CONLL_U.match(text):
                raise UserError(
                    f"line {number:,} of {path} is CoNLL-U; write a file of two columns with the "
                    "FORM and the tag of every word, such as its UPOS"
                )
            if not width and _NAMES_OF_COLUMNS.fullmatch(text):
                raise UserError(f"line {number:,} of {path} names the columns; remove it")
            separator = separator or ("\t" if "\t" in text else " ")
            cells = text.split("\t") if separator == "\t" else _BLANKS.split(text.strip(" "))
            width = width or len(cells)
            if len(cells) != width or width < 2:
                raise UserError(
                    f"line {number:,} of {path} has {len(cells)} columns, not {max(2, width)}: "
                    f"{text[:60]!r}; correct or remove it"
                )
            word, tag = cells[0].strip(" "), cells[-1].strip(" ")
            if not word or not tag:
                raise UserError(
                    f"line {number:,} of {path} has no {'tag' if word else 'word'}: {text[:60]!r}; "
                    "correct or remove it"
                )
            first = first if words else number
            words.append(word)
            tags.append(tag)
    if num_sentences == 1 and longest > _LONGEST_SENTENCE:
        raise UserError(
            f"{path} is one sentence of {longest:,} words; end each sentence with an empty line"
        )
    if len(different_tags) > max(_FEW_TAGS, len(different_words)):
        raise UserError(
            f"the last column of {path} has {len(different_tags):,} different values and the first "
            f"one {len(different_words):,}; put the words into the first column and the tags into "
            "the last one"
        )
    are_words = any(
        any(map(str.isalpha, word)) and not any(map(str.isdigit, word)) for word in different_words
    )
    if width > 2 and longest > 1 and not (are_words and varies):
        raise UserError(
            f"the first column of {path} numbers the words or names the sentence; leave it out, so "
            "that the first column holds the words and the last one the tags"
        )
