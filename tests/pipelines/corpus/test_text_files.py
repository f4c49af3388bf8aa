"""Documents of text files: the same ones however the file is divided into spans."""

import bz2
import gzip
import lzma
from itertools import pairwise
from pathlib import Path

import pytest
from fsspec.compression import zstd

from pipelines.config.errors import UserError
from pipelines.io.files import expand, read_head
from pipelines.io.records import opened
from pipelines.io.text import Tally
from pipelines.stages.corpus.settings import PlainText
from pipelines.stages.corpus.sources import text_files
from pipelines.stages.corpus.sources.inputs import InputFile, Span, resolve

BLOCKS = "One.\nTwo.\n\nThree.\n \n\n\nFour\nfive.\n"
WIKITEXT = (
    " = First = \n\n Text one . \n\n = = Section = = \n\n More . \n = Second = \n Text two . \n"
)


def documents(path: Path, layout: str, span: tuple[int, int | None] = (0, None), **settings):
    source, (file,), _ = resolve(PlainText(paths=(str(path),), layout=layout, **settings))
    where = Span(source=0, file=file, begin=span[0], end=span[1])
    return list(text_files.read(source, where, Tally()))


def texts(path: Path, layout: str, span: tuple[int, int | None] = (0, None), **settings):
    return [document.text.strip() for document in documents(path, layout, span, **settings)]


@pytest.mark.parametrize(
    ("layout", "content", "expected"),
    [
        ("file", BLOCKS, ["One.\nTwo.\n\nThree.\n\n\n\nFour\nfive."]),
        ("line", "One.\r\nTwo.\n\nThree.", ["One.", "Two.", "Three."]),
        ("blank_line", BLOCKS, ["One.\nTwo.", "Three.", "Four\nfive."]),
        ("sentences", BLOCKS, ["One.\nTwo.", "Three.", "Four\nfive."]),
        (
            "headings",
            WIKITEXT,
            ["= First =\n\nText one .\n\n= = Section = =\n\nMore .", "= Second =\nText two ."],
        ),
    ],
)
def test_layouts_say_what_a_document_is(tmp_path, layout, content, expected):
    path = tmp_path / "text.txt"
    path.write_bytes(content.encode())
    assert texts(path, layout) == expected


@pytest.mark.parametrize("layout", ["line", "blank_line", "sentences", "headings"])
@pytest.mark.parametrize("overlap", [16, 4096])
def test_spans_divide_a_file_without_losing_or_repeating_a_document(
    tmp_path, monkeypatch, layout, overlap
):
    monkeypatch.setattr(text_files, "_OVERLAP_BYTES", overlap)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 2 * overlap)
    path = tmp_path / "text.txt"
    path.write_bytes((WIKITEXT + BLOCKS + WIKITEXT).encode())
    whole = texts(path, layout)
    size = path.stat().st_size
    for edge in range(1, size + 1, 2):
        assert texts(path, layout, (0, edge)) + texts(path, layout, (edge, None)) == whole, edge
    cut = [*range(0, size, 7), None]
    assert [text for span in pairwise(cut) for text in texts(path, layout, span)] == whole


def test_one_sentence_a_line_is_taken_as_it_is(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Dr. A. B. said so. Really.\nNext one.\n\nOther document.\n")
    found = documents(path, "sentences")
    assert found[0].sentences == ("Dr. A. B. said so. Really.", "Next one.")
    assert found[1].sentences == ("Other document.",)


def test_hard_wrapped_lines_are_joined(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("A line that\ngoes on.\n\nNext paragraph\nhere.\n")
    assert texts(path, "file", hard_wrapped=True) == ["A line that goes on.\nNext paragraph here."]


def test_scripts_without_blanks_gain_none_where_lines_are_joined(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("我来到\n北京。\n\nประเทศ\nไทย\nand here\n日本\n", encoding="utf-8")
    found = texts(path, "file", hard_wrapped=True)
    assert found == ["我来到北京。\nประเทศไทย and here 日本"]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstd.compress),
    ],
)
def test_compressed_files_are_opened_and_labelled_by_their_inner_name(tmp_path, suffix, compress):
    path = tmp_path / f"book.txt{suffix}"
    path.write_bytes(compress(BLOCKS.encode()))
    (first, *_) = found = documents(path, "blank_line")
    assert [document.text for document in found] == ["One.\nTwo.", "Three.", "Four\nfive.\n"]
    assert first.label == "book"


def test_a_document_that_is_too_long_comes_in_pieces_of_one_group(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PIECE_BYTES", 1000)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 300)
    path = tmp_path / "long.txt"
    lines = [f"Line {number} with some words in it." for number in range(200)]
    path.write_text("\n".join(lines))
    found = documents(path, "file")
    assert len(found) > 5
    assert {document.group for document in found} == {found[0].group}
    assert found[0].group is not None
    assert [document.piece for document in found] == list(range(len(found)))
    assert "\n".join(document.text.strip() for document in found).split("\n") == lines


def test_a_line_without_end_is_cut_between_letters(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PIECE_BYTES", 1000)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 300)
    path = tmp_path / "long.txt"
    path.write_text("é" * 5000, encoding="utf-8")
    assert "".join(texts(path, "line")) == "é" * 5000


@pytest.mark.parametrize(
    ("suffix", "kind", "compress"), [("gz", "gzip", gzip.compress), ("zst", "zstd", zstd.compress)]
)
def test_a_compressed_file_that_is_cut_is_named(tmp_path, suffix, kind, compress):
    path = tmp_path / f"broken.txt.{suffix}"
    path.write_bytes(compress(b"A sentence. " * 1000)[:-20])
    with pytest.raises(UserError, match=rf"broken\.txt\.{suffix} is not a whole {kind} file"):
        documents(path, "file")


def test_a_file_of_several_zstd_frames_is_read_whole(tmp_path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstd.compress(b"One. ") + zstd.compress(b"Two."))
    assert read_head(str(path), 7) == (b"One. Tw", False)


def test_a_binary_file_named_txt_is_refused(tmp_path):
    path = tmp_path / "image.txt"
    path.write_bytes(bytes(range(256)) * 100)
    with pytest.raises(UserError, match=r"image\.txt is not text"):
        documents(path, "file")


def test_a_glob_without_a_match_is_refused(tmp_path):
    with pytest.raises(UserError, match="matches no file"):
        resolve(PlainText(paths=(str(tmp_path / "*.txt"),)))


def test_a_missing_file_and_no_path_at_all_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        resolve(PlainText(paths=(str(tmp_path / "none.txt"),)))
    with pytest.raises(UserError, match="at least one path"):
        resolve(PlainText())


def test_folders_and_globs_list_their_files_sorted_and_once(tmp_path):
    for name in ("b.txt", "a.txt", ".hidden", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    paths = (str(tmp_path / "b.txt"), str(tmp_path), str(tmp_path / "*.txt"))
    found: list[InputFile] = resolve(PlainText(paths=paths)).files
    assert [file.label for file in found] == ["b", "a", "c"]


def test_what_a_file_is_named_by_covers_its_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    before = resolve(PlainText(paths=(str(path),))).files[0].digest
    path.write_text("tex!")
    assert resolve(PlainText(paths=(str(path),))).files[0].digest != before


@pytest.mark.parametrize("protocol", ["", "file://", "local://"])
def test_local_files_are_found_by_path_and_by_url(tmp_path: Path, protocol: str) -> None:
    (tmp_path / "a.txt").write_text("One.")
    assert expand(f"{protocol}{tmp_path}/*.txt") == [f"{tmp_path}/a.txt"]
    with opened(f"{protocol}{tmp_path}/a.txt") as stream:
        assert stream.read() == b"One."
