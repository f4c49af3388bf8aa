"""Documents of text files: the same ones however the file is divided into spans."""

import re
from collections import Counter
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from fsspec.compression import zstd
from pydantic import ValidationError

from pipelines.errors import UserError
from pipelines.io.files import expand
from pipelines.stages.corpus import reading
from pipelines.stages.corpus.settings import TextFiles
from pipelines.stages.corpus.sources import Span, read_span, resolve

BLOCKS = "One.\nTwo.\n\nThree.\n \n\n\nFour\nfive.\n"
WIKITEXT = (
    " = First = \n\n Text one . \n\n = = Section = = \n\n More . \n = Second = \n Text two . \n"
)


def documents(path: Path, layout: str, span: tuple[int, int | None] = (0, None), **settings):
    source, (file,) = resolve(TextFiles(paths=(str(path),), layout=layout, **settings))
    where = Span(source=0, file=file, begin=span[0], end=span[1])
    return list(reading.read_text(source, where, Counter()))


def texts(path: Path, layout: str, span: tuple[int, int | None] = (0, None), **settings):
    return [document.text.strip() for document in documents(path, layout, span, **settings)]


@pytest.mark.parametrize(
    ("layout", "content", "expected"),
    [
        ("file", BLOCKS, ["One.\nTwo.\n\nThree.\n\n\n\nFour\nfive."]),
        ("line", "One.\r\nTwo.\n\nThree.", ["One.", "Two.", "Three."]),
        ("blank_line", BLOCKS, ["One.\nTwo.", "Three.", "Four\nfive."]),
        ("sentences", BLOCKS, ["One.\nTwo.", "Three.", "Four\nfive."]),
        ("blank_line", "One.\n\u00a0\nTwo.\n\u3000\u3000\nThree.", ["One.", "Two.", "Three."]),
        ("sentences", "一。\n\u202f\t\n二。\n", ["一。", "二。"]),
        ("line", "\ufeffOne.\n\ufeffTwo.", ["One.", "Two."]),
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
    monkeypatch.setattr(reading, "_OVERLAP_BYTES", overlap)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 2 * overlap)
    path = tmp_path / "text.txt"
    odd = BLOCKS.replace(" ", "\u3000\u00a0\u2003") + "".join(
        f"\n\n{blanks * 5}Indented.\n" for blanks in ("\u3000", "\u00a0", "a\n\n\u2003\u202f")
    )
    path.write_bytes((WIKITEXT + odd + WIKITEXT).encode())
    whole = texts(path, layout)
    size = path.stat().st_size
    for edge in range(1, size + 1, 2):
        assert texts(path, layout, (0, edge)) + texts(path, layout, (edge, None)) == whole, edge
    cut = [*range(0, size, 7), None]
    assert [text for span in pairwise(cut) for text in texts(path, layout, span)] == whole


def test_a_span_in_which_no_document_begins_is_not_read_to_the_end_of_the_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(reading, "_OVERLAP_BYTES", 16)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 32)
    path = tmp_path / "text.txt"
    path.write_text("ประโยคหนึ่งประโยค\n" * 100, encoding="utf-8")
    _, (file,) = resolve(TextFiles(paths=(str(path),), layout="blank_line"))
    with path.open("rb") as stream:
        stream.seek(1000 - 16)
        span = Span(source=0, file=file, begin=1000, end=1200)
        assert not list(reading.cut_documents(stream.read, span, re.compile(rb"\n\n")))
        assert stream.tell() < 1200 + 3 * 32


def test_one_sentence_a_line_is_taken_as_it_is(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Dr. A. B. said so. Really.\nNext one.\n\nOther document.\n")
    found = documents(path, "sentences")
    assert found[0].sentences == ("Dr. A. B. said so. Really.", "Next one.")
    assert found[1].sentences == ("Other document.",)


def test_hard_wrapped_lines_are_joined_where_that_is_said(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("A line that\ngoes on.\n\nNext paragraph\nhere.\n")
    assert texts(path, "file", hard_wrapped=True) == ["A line that goes on.\nNext paragraph here."]
    assert texts(path, "file") == ["A line that\ngoes on.\n\nNext paragraph\nhere."]
    # Scripts without blanks gain none.
    path.write_text(
        "我来到\n北京。\n\nประเทศ\nไทย\nand here\n日本\n\n"
        "မြန်မာ\nနိုင်ငံ\n\nភាសា\nខ្មែរ\n\nབོད་\nསྐད།\n\nЭто\nдом.",
        encoding="utf-8",
    )
    assert texts(path, "file", hard_wrapped=True) == [
        "我来到北京。\nประเทศไทย and here 日本\nမြန်မာနိုင်ငံ\nភាសាខ្មែរ\nབོད་སྐད།\nЭто дом."
    ]
    with pytest.raises(ValidationError, match="with layout=line each line stands for itself"):
        TextFiles(layout="line", hard_wrapped=True)


def test_compressed_files_are_opened_and_labelled_by_their_inner_name(tmp_path):
    path = tmp_path / "book.txt.zst"
    path.write_bytes(zstd.compress(BLOCKS.encode()))
    (first, *_) = found = documents(path, "blank_line")
    assert [document.text for document in found] == ["One.\nTwo.", "Three.", "Four\nfive.\n"]
    assert first.label == "book"


def test_a_document_that_is_too_long_comes_in_pieces_of_one_group(tmp_path, monkeypatch):
    cut = partial(reading.cut_documents, piece_bytes=1000)
    monkeypatch.setattr(reading, "cut_documents", cut)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 300)
    path = tmp_path / "long.txt"
    lines = [f"Line {number} with some words in it." for number in range(200)]
    path.write_text("\n".join(lines))
    found = documents(path, "file")
    assert len(found) > 5
    assert {document.group for document in found} == {found[0].group}
    assert found[0].group is not None
    assert [document.piece for document in found] == list(range(len(found)))
    assert "\n".join(document.text.strip() for document in found).split("\n") == lines
    path.write_text("é" * 5000, encoding="utf-8")  # cut between letters
    assert "".join(texts(path, "line")) == "é" * 5000


def test_a_binary_file_named_txt_is_refused(tmp_path):
    path = tmp_path / "image.txt"
    path.write_bytes(bytes(range(256)) * 100)
    with pytest.raises(UserError, match=r"image\.txt is not text"):
        documents(path, "file")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (r"{\rtf1\ansi One.}", "RTF"),
        ("\n<!-- saved -->\n<html><p>One.", "HTML"),
        ('<?xml version="1.0"?>\n<p>One.</p>', "XML"),
        ('<mediawiki xmlns="http://www.mediawiki.org/x" xml:lang="hi">\n<page>', "XML"),
        ('\n<TEI\n xml:id="a" xmlns="http://www.tei-c.org/ns/1.0">', "XML"),
        ('<html xmlns="http://www.w3.org/1999/xhtml"><p>One.', "HTML"),
        ("From: a@b.example\nReceived: by x;\n\tMonday\nMIME-Version: 1.0\n\nOne.", "e-mail"),
        ('{\n "cells": [\n {"source": "One."}]}', "JSON"),
        ('{"text": "One."}\n{"text": "Two."}\n', "JSON"),
        ("From a@b Mon Jan\nFrom: a@b\nMessage-ID: <1>\n\nOne.", "e-mail"),
        ('<doc id="0" url="" title="A">\nOne.\n</doc>', "WikiExtractor's output"),
        ("WARC/1.0\r\nWARC-Type: conversion\r\n\r\nOne.", "an archive of the web"),
        ("1\n00:00:01,000 --> 00:00:02,000\nOne.\n", "subtitles"),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\nOne.", "subtitles"),
        ("-- MySQL dump 10.13\nINSERT INTO a", "a dump of a database"),
        ("From: here to there\n\n{{Infobox}} <html> in HTML: see MIME-Version: 1.0", None),
        ("[a] one {b} two", None),
        ("<b>Один</b> xmlns= два", None),
    ],
)
def test_what_is_no_plain_text_by_its_content_is_refused(tmp_path, content, kind):
    path = tmp_path / "a.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=f"is {kind} by its content") if kind else nullcontext():
        documents(path, "file")


def test_a_table_and_another_encoding_are_no_text(tmp_path):
    path = tmp_path / "a.txt"
    table = "".join(f"{number}\tOne sentence.\n" for number in range(20))
    path.write_text(table)
    with pytest.raises(UserError, match=r"every line of .* has a tab: it seems to be a table"):
        documents(path, "line")
    path.write_text(f"{table}No tab.\nx\n")
    assert len(documents(path, "line")) == 22
    path.write_bytes(
        "Очень хороший фильм, всем советую. Играют прекрасные актёры.\n".encode("cp1251") * 9
    )
    with pytest.raises(UserError, match="words of accented letters alone, which no language has"):
        documents(path, "line", encoding="cp1252")
    assert len(documents(path, "line", encoding="cp1251")) == 9
    path.write_bytes(
        "Là-bas, l'élève a été très gêné; où était-il déjà allé ?\n".encode("cp1252") * 9
    )
    assert len(documents(path, "line", encoding="cp1252")) == 9


@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-16", "utf-8"), ("cp1251", "cp1251"), ("gbk", "gb18030")]
)
@pytest.mark.parametrize("layout", ["file", "line"])
def test_a_named_encoding_is_read_and_utf16_by_its_mark(
    tmp_path, monkeypatch, encoding, named, layout
):
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 101)
    word = "北京" if encoding == "gbk" else "нет"
    lines = [f"{word} number {number}." for number in range(50)]
    (tmp_path / "a.txt").write_bytes("\n".join(lines).encode(encoding))
    found = texts(tmp_path / "a.txt", layout, encoding=named)
    assert "\n".join(found).split("\n") == lines


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize(("mark", "is_divided"), [("", True), ("\ufeff", False)])
def test_a_file_with_a_byte_order_mark_is_read_by_one_task(tmp_path, name, mark, is_divided):
    (tmp_path / name).write_text(f"{mark}यह पहला वाक्य है।\n", encoding="utf-8")
    _, (file,) = resolve(TextFiles(paths=(str(tmp_path / name),), layout="line"))
    assert file.splittable == is_divided


def test_bytes_of_another_encoding_are_refused_with_their_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("хорошо и ещё раз хорошо", encoding="utf-8")
    with pytest.raises(UserError, match="is UTF-8 and not cp1251; leave out the setting"):
        documents(path, "line", encoding="cp1251")
    path.write_bytes(b"One.\nTwo.\n" + "нет, это не так.".encode("cp1251"))
    with pytest.raises(UserError, match=r"line 3 of .*a\.txt is not UTF-8 .* setting `encoding`"):
        documents(path, "file")
    for encoding, half, named in (
        ("utf-8-sig", b"\xd0", "line 2 of .*a.txt is not UTF-8"),
        ("utf-16", b"A", "a.txt is not UTF-16"),
        ("cp932", b"\x93", "line 2 of .*a.txt is not CP932"),
    ):
        path.write_bytes("Добрый\nдень".encode(encoding) + half)
        with pytest.raises(UserError, match=rf"{named} \(byte 0x{half.hex()}\)"):
            documents(path, "file", encoding="cp932" if encoding == "cp932" else "utf-8")
    with pytest.raises(ValidationError, match="no encoding is called 'klingon'"):
        TextFiles(encoding="klingon")


def test_hidden_files_and_folders_are_left_out_unless_they_are_named(tmp_path):
    for name in ("a.txt", ".git/config", "b/.ipynb_checkpoints/b.txt", "b/b.txt", "b/.c.txt"):
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text("a text")
    notes = tmp_path / "notes"
    paths = (str(notes / "b" / "b.txt"), str(notes), str(notes / "*.txt"))
    _, files = resolve(TextFiles(paths=paths))
    assert [file.label for file in files] == ["b", "a"]  # each once
    whole = [str(notes / name) for name in ("a.txt", "b/b.txt")]
    assert expand(str(notes)) == expand(str(notes / "**" / "*.txt")) == whole
    assert expand(str(notes / ".git")) == [str(notes / ".git" / "config")]
    assert expand(str(notes / ".git" / "*")) == [str(notes / ".git" / "config")]
    assert expand(str(notes / "b" / ".c.txt")) == [str(notes / "b" / ".c.txt")]
    with pytest.raises(UserError, match="matches no file"):
        expand(str(notes / "b" / "*.c.txt"))


def test_a_file_that_grows_or_is_another_on_a_node_is_noticed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("A text that is long enough.\n")
    source, (file,) = resolve(TextFiles(paths=(str(path),)))
    path.write_text("A text that is long enough.\nAnd another one.\n")
    with pytest.raises(UserError, match=r"a\.txt on .* has 45 bytes, and had 28 when"):
        list(read_span(source, Span(source=0, file=file), Counter()))
