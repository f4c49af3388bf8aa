"""Recognizing the layout of text files from their heads: docs/decisions/0011.

Where a document ends is decided for a whole source, because a document must mean the same in all
its files. Whether lines were broken to fit a page is decided for each file, because a folder of
books may mix both.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from pipelines.stages.corpus.settings import FEWEST_DOCUMENTS

HEAD_BYTES: Final = 65536  # of a file, decompressed: some 900 lines of a page's width
_FEWEST_BREAKS: Final = 8  # fewer lines that another one follows say nothing
_PAGE_WIDTHS: Final = range(30, 121)  # characters
_FULL_SHARE: Final = 0.6  # of the width: a line at least so long is nearly full
_HEADING: Final = re.compile(r"= [^=\s][^=]* =")
_CLOSING: Final = "\"'”’»)]}*_ 」』）】"
_SENTENCE_ENDS: Final = tuple(".!?…:;。！？｡।॥۔؟")
# A sentence that ends inside a line: another one begins behind it.
_INNER_END: Final = re.compile(
    r"[.!?…][\"'”’»)]* +[\"'“‘«(]*[^\W\d_a-z]|[。！？｡।॥۔؟][^”’」』）】]"
)

Layout = Literal["file", "blank_line", "line", "sentences", "headings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What was counted in the head of a file. A block is a run of lines between blank ones."""

    is_whole: bool  # the head is the file
    lines: int  # that are not blank
    wide: int  # lines wider than a page
    blocks: int
    ended: int  # lines that end as a sentence does
    single: int  # lines inside which no second sentence begins
    breaks: int  # lines that another one of their block follows
    width: int  # characters: 95% of the lines before a break are at most so long
    full_breaks: int  # lines before a break that are nearly as long as that
    open_breaks: int  # those that end no sentence, and what follows begins without a capital
    begins_with_heading: bool

    @property
    def is_hard_wrapped(self) -> bool | None:
        """Whether lines were broken to fit a page; None if there are too few to decide."""
        if self.breaks < _FEWEST_BREAKS:
            return False if self.wide else None
        return (
            self.width in _PAGE_WIDTHS
            and self.full_breaks >= 0.6 * self.breaks
            and self.open_breaks >= 0.4 * self.breaks
        )


class Recognition(NamedTuple):
    """The layout of a source, and the reason."""

    layout: Layout
    reason: str


def measure(head: bytes, *, is_whole: bool) -> Shape:
    """Count in the first bytes of a file; its last line is left out unless `is_whole`."""
    text = head.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    if not is_whole and "\n" in text:
        text = text[: text.rindex("\n")]
    blocks = list(_blocks(text))
    lines = [line for block in blocks for line in block]
    breaks = [pair for block in blocks for pair in pairwise(block)]
    lengths = sorted(len(line) for line, _ in breaks)
    width = lengths[int(0.95 * (len(lengths) - 1))] if lengths else 0
    return Shape(
        is_whole=is_whole,
        lines=len(lines),
        wide=sum(len(line) > _PAGE_WIDTHS[-1] for line in lines),
        blocks=len(blocks),
        ended=sum(map(_ends_a_sentence, lines)),
        single=sum(not _INNER_END.search(line) for line in lines),
        breaks=len(breaks),
        width=width,
        full_breaks=sum(length >= _FULL_SHARE * width for length in lengths),
        open_breaks=sum(_goes_on(line, following) for line, following in breaks),
        begins_with_heading=bool(lines) and _HEADING.fullmatch(lines[0]) is not None,
    )


def are_hard_wrapped(shapes: Sequence[Shape]) -> list[bool]:
    """For each file whether its lines were broken to fit; undecided ones follow the others."""
    decided = [shape.is_hard_wrapped for shape in shapes]
    most = 2 * decided.count(True) > len(decided) - decided.count(None)
    return [most if each is None else each for each in decided]


def recognize(shapes: Sequence[Shape]) -> Recognition:
    """What a document of the source is, whose files have these shapes."""

    def total(name: str) -> int:
        return sum(getattr(shape, name) for shape in shapes)

    headed = sum(shape.begins_with_heading for shape in shapes)
    if 2 * headed > len(shapes):
        return Recognition("headings", f"{headed} of {len(shapes)} files begin with ' = Title = '")
    lines, blocks = total("lines"), total("blocks")
    if (
        total("breaks") >= _FEWEST_BREAKS
        and blocks >= FEWEST_DOCUMENTS
        and not any(are_hard_wrapped(shapes))
        and total("ended") >= 0.8 * lines
        and total("single") >= 0.8 * lines
    ):
        return Recognition(
            "sentences",
            f"{total('ended') / lines:.0%} of the lines end as a sentence does, "
            f"{total('single') / lines:.0%} hold only one, and blank lines part them",
        )
    if len(shapes) >= FEWEST_DOCUMENTS:
        return Recognition("file", f"there are {len(shapes):,} files of running text")
    few = f"fewer than {FEWEST_DOCUMENTS} files, "
    if blocks >= (FEWEST_DOCUMENTS if all(shape.is_whole for shape in shapes) else 2):
        return Recognition("blank_line", f"{few}and blank lines part blocks")
    if lines >= FEWEST_DOCUMENTS and not any(are_hard_wrapped(shapes)):
        return Recognition("line", f"{few}and no blank lines part blocks")
    return Recognition("file", f"{few}and nothing in them parts documents")


def _blocks(text: str) -> Iterator[list[str]]:
    block: list[str] = []
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped:
            block.append(stripped)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _ends_a_sentence(line: str) -> bool:
    return line.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)


def _goes_on(line: str, following: str) -> bool:
    first_letter = next((character for character in following if character.isalpha()), "")
    return not _ends_a_sentence(line) and not first_letter.isupper()
