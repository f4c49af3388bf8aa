"""How text files are laid out is found out from their heads, and said."""

import textwrap
from pathlib import Path

import pytest

from pipelines.io.text import Tally
from pipelines.stages.corpus.cleaning import split_sentences
from pipelines.stages.corpus.settings import PlainText
from pipelines.stages.corpus.sources.inputs import Span, inputs_fingerprint, read_span, resolve
from pipelines.stages.corpus.sources.layouts import measure

CORPORA = Path("../shared/data/corpus")
PROSE = (
    "It was the kind of morning on which nothing was expected of anybody, least of all of the "
    "old keeper. He went down to the water, as he had done for thirty years, and looked for the "
    "boat. There was none.",
    "When the bell rang he turned around and saw that somebody had left the gate open, although "
    "the lock was new. Nobody in the village would have dared.",
)
VERSE = "O Rose thou art sick\nThe invisible worm\nThat flies in the night\nIn the howling storm"


def paragraphs(count: int) -> list[str]:
    return [f"Number {number}. {PROSE[number % 2]}" for number in range(count)]


def wrapped(texts: list[str], width: int = 72, between: str = "\n\n") -> str:
    return between.join(textwrap.fill(text, width, break_on_hyphens=False) for text in texts)


def write(folder: Path, contents: list[str]) -> tuple[str, ...]:
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_text(content, encoding="utf-8")
    return tuple(str(folder / f"{number}.txt") for number in range(len(contents)))


def sentences(paths: tuple[str, ...], **settings) -> list[str]:
    source, files, _ = resolve(PlainText(paths=paths, **settings))
    return [
        sentence
        for file in files
        for document in read_span(source, Span(source=0, file=file), Tally())
        for sentence in document.sentences or split_sentences(document.text)
    ]


@pytest.mark.parametrize(
    ("contents", "layout", "hard_wrapped"),
    [
        ([wrapped(paragraphs(9))] * 5, "file", True),
        (["\n\n".join(paragraphs(9))] * 5, "file", False),
        (["\n".join(paragraphs(30))] * 5, "file", False),
        ([wrapped(paragraphs(9))], "blank_line", True),
        (["\n\n".join(paragraphs(9))], "blank_line", False),
        (["\n".join(paragraphs(30))], "line", False),
        (["One is here.\nTwo is there.\n\nThree went on.\n\n" * 9] * 2, "sentences", False),
        ([" \n = First = \n \n Text one . \n = Second = \n Text . \n"], "headings", False),
        (["\n\n".join([VERSE] * 9)] * 5, "file", False),
        (["the\nof\nand\nin\nto\nwas\nis\nfor\nas\non\nwith\nby\nhe\nat\n" * 9] * 5, "file", False),
    ],
)
def test_a_layout_is_recognized_and_the_reason_given(tmp_path, contents, layout, hard_wrapped):
    paths = write(tmp_path, [f"{each}\n" for each in contents])
    source, files, note = resolve(PlainText(paths=paths))
    assert (source.layout, {file.hard_wrapped for file in files}) == (layout, {hard_wrapped})
    assert f"layout {layout} (" in note
    assert ("are joined up to a blank line" in note) == hard_wrapped


def test_each_file_is_asked_whether_its_lines_were_broken(tmp_path):
    contents = [wrapped(paragraphs(9)), "\n\n".join(paragraphs(9)), wrapped(paragraphs(9), 50)]
    short = wrapped([PROSE[0]])  # says too little: it goes with most of the others
    _, files, note = resolve(PlainText(paths=write(tmp_path, [*contents, short])))
    assert [file.hard_wrapped for file in files] == [True, False, True, True]
    assert "3 of 4 files" in note


def test_what_is_set_is_not_asked(tmp_path):
    paths = write(tmp_path, [wrapped(paragraphs(9))])
    source, files, note = resolve(PlainText(paths=paths, layout="file", hard_wrapped=False))
    assert (source.layout, files[0].hard_wrapped, note) == ("file", False, "")


def test_a_layout_found_and_the_same_layout_set_name_the_same_text(tmp_path):
    paths = write(tmp_path, [wrapped(paragraphs(9))] * 4)
    found, files, _ = resolve(PlainText(paths=paths))
    given, files_given, _ = resolve(PlainText(paths=paths, layout="file", hard_wrapped=True))
    assert found.layout == given.layout
    numbered, numbered_given = ([(0, file) for file in each] for each in (files, files_given))
    assert inputs_fingerprint(numbered) == inputs_fingerprint(numbered_given)
    _, other, _ = resolve(PlainText(paths=paths, layout="file", hard_wrapped=False))
    assert inputs_fingerprint([(0, file) for file in other]) != inputs_fingerprint(numbered)


@pytest.mark.parametrize("width", [45, 60, 72, 80, 100])
@pytest.mark.parametrize("layout", ["auto", "file"])
def test_a_wrapped_text_gives_the_sentences_of_the_unwrapped_one(tmp_path, width, layout):
    texts = paragraphs(40)
    plain = sentences(write(tmp_path / "plain", ["\n\n".join(texts)] * 4), layout=layout)
    broken = sentences(write(tmp_path / "broken", [wrapped(texts, width)] * 4), layout=layout)
    assert broken == plain
    assert len(plain) == 4 * 140


def test_the_head_decides_the_same_whatever_follows_its_last_line():
    text = wrapped(paragraphs(40)).encode()
    shapes = {measure(text[:end], is_whole=False) for end in (5000, 5001, 5002)}
    assert len(shapes) <= 2
    assert all(shape.is_hard_wrapped for shape in shapes)


def test_a_real_novel_wrapped_at_72_columns_keeps_its_sentences(tmp_path):
    novel = CORPORA / "english_novels" / "Doyle_Hound_1902.txt"
    if not novel.exists():
        pytest.skip("the English novels are not on this machine")
    lines = [line for line in novel.read_text(encoding="utf-8").split("\n") if line.strip()]
    plain = sentences(write(tmp_path / "plain", ["\n\n".join(lines)]))
    broken = sentences(write(tmp_path / "broken", [wrapped(lines)]))
    assert abs(len(broken) - len(plain)) < 0.01 * len(plain)


@pytest.mark.parametrize(
    ("names", "layout", "num_hard_wrapped"),
    [
        (["english_novels/[A-Z]*_*.txt"], "file", 46),
        (["wikitext-2/train.txt", "wikitext-2/valid.txt"], "headings", 0),
        (["multilingual/*.txt"], "sentences", 0),
        (["multilingual/english.txt"], "sentences", 0),
        (["multilingual/japanese.txt"], "sentences", 0),
    ],
)
def test_real_corpora_are_recognized(names, layout, num_hard_wrapped):
    if not CORPORA.exists():
        pytest.skip("the shared corpora are not on this machine")
    source, files, _ = resolve(PlainText(paths=tuple(str(CORPORA / name) for name in names)))
    assert source.layout == layout
    assert sum(file.hard_wrapped for file in files) == num_hard_wrapped
