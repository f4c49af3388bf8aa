"""CoNLL's columns: a word and its tag a line, an empty line after a sentence."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from pipelines.errors import UserError
from pipelines.io.files import check_no_mark, open_text

_BLANKS: Final = re.compile(" +")
# A comment ("# sent_id = 1", "# newdoc"), or ten columns of which the first is a number.
_CONLL_U: Final = re.compile(r"# *\S+ *= |# +(newdoc|newpar|id|text)\b|\d+([-.]\d+)?(\t[^\t]*){9}$")
_MERGE: Final = re.compile(r"(<{7}|>{7}|\|{7}) \S|={7}$")
_NAMES_OF_COLUMNS: Final = re.compile(
    r"(words?|tokens?|form|text)[ \t](.*[ \t])?((ner|pos)_)?(tags?|labels?|pos|upos|xpos|ner)", re.I
)
_ENTITY: Final = re.compile(r"O|[BIESLU]-\S+")  # how its tags look
_LONGEST_SENTENCE: Final = 500  # of a file that is one sentence
_FEW_TAGS: Final = 10


class TaggedSentence(NamedTuple):
    """The words of a sentence and a tag for each, and the line of the first one, from 1."""

    line: int
    words: list[str]
    tags: list[str]


def tagged_sentences(path: str, encoding: str) -> Iterator[TaggedSentence]:
    """The sentences of a file.

    Tabs separate the columns of a file whose first line has any, and blanks those of the others.
    The word is in the first column and the tag in the last. A `-DOCSTART-` line parts sentences, as
    an empty one does. Raises UserError for a line that is none, for names of columns, for CoNLL-U,
    and for columns that `_Columns` refuses.
    """
    columns, width = _Columns(), 0
    words: list[str] = []
    tags: list[str] = []
    first = 0
    separator: str | None = None
    with open_text(path, encoding) as lines:
        for number, line in enumerate(chain(lines, [""]), start=1):
            text = line.strip("\r\n")
            check_no_mark(text, f"line {number:,} of {path}")
            if not text.strip("\t ") or text.startswith("-DOCSTART-"):
                if words:
                    columns.end_sentence(words)
                    yield TaggedSentence(first, words, tags)
                words, tags = [], []
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
                    f"{text[:60]!r}; correct or remove it (tabs or blanks separate columns)"
                )
            word, tag = cells[0].strip(" "), cells[-1].strip(" ")
            if not word or not tag:
                raise UserError(
                    f"line {number:,} of {path} has no {'tag' if word else 'word'}: {text[:60]!r}; "
                    "correct or remove it"
                )
            columns.look(cells)
            first = first if words else number
            words.append(word)
            tags.append(tag)
    columns.check(path)


class _Columns:
    """What the columns of a whole file hold, to tell words and tags from numbers and names."""

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._tags: set[str] = set()
        self._entities: dict[int, bool] = {}  # of a column of their tags, whether one is not `O`
        self._width = self._longest = self._num_sentences = 0
        self._varies = False  # within a sentence

    def look(self, cells: Sequence[str]) -> None:
        """Take a row into account."""
        self._words.add(cells[0].strip(" "))
        self._tags.add(cells[-1].strip(" "))
        if not self._width:
            self._width = len(cells)
            self._entities = dict.fromkeys(range(1, self._width), False)
        for place in [*self._entities]:
            if _ENTITY.fullmatch(cells[place].strip(" ")):
                self._entities[place] |= cells[place].strip(" ") != "O"
            else:
                del self._entities[place]

    def end_sentence(self, words: Sequence[str]) -> None:
        """Take a sentence into account, whose rows were looked at."""
        self._num_sentences += 1
        self._longest = max(self._longest, len(words))
        self._varies |= len({*words}) > 1

    def check(self, path: str) -> None:
        """Raise UserError where the first column holds no words, or the last one no tags.

        Numbers and names of sentences are no words. Likewise for a long file without an empty line.
        """
        if self._num_sentences == 1 and self._longest > _LONGEST_SENTENCE:
            raise UserError(
                f"{path} is one sentence of {self._longest:,} words; end each sentence with an "
                "empty line"
            )
        for mark in ",;":
            if self._words and all(len(word) > 1 and word[-1] == mark for word in self._words):
                raise UserError(
                    f"every word of {path} ends with {mark!r}; separate the columns by tabs or "
                    "blanks alone"
                )
        entities = [place for place, has_one in self._entities.items() if has_one]
        if entities and self._width - 1 not in entities:
            raise UserError(
                f"column {entities[0] + 1} of {path} has tags of entities, and the last one has "
                "others; leave out the columns behind the tags that you mean"
            )
        if len(self._tags) > max(_FEW_TAGS, len(self._words)):
            raise UserError(
                f"the last column of {path} has {len(self._tags):,} different values and the first "
                f"one {len(self._words):,}; put the words into the first column and the tags into "
                "the last one"
            )
        has_words = any(
            any(map(str.isalpha, word)) and not any(map(str.isdigit, word)) for word in self._words
        )
        if self._width > 2 and self._longest > 1 and not (has_words and self._varies):
            raise UserError(
                f"the first column of {path} numbers the words or names the sentence; leave it "
                "out, so that the first column holds the words and the last one the tags"
            )
