"""The text of HTML and PDF files, and what is said of files that have none."""

from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.backends.backend_pdf import PdfPages

from pipelines.errors import UserError
from pipelines.stages.corpus import extraction, sources
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.sources import Span, check_inputs, read_span, resolve

PAGE = """<!doctype html><html><head><title>Not said</title><style>p { color: red }</style></head>
<body><nav><a href="/">Home</a> <a href="/more">More</a></nav><header>The site</header>
<main><h1>A heading</h1><p>One <b>bold</b> word, a <a href="x">link</a>
and caf&eacute;.</p><ul><li>an item</li><li>another</li></ul><pre>code()</pre>
<script>alert("never")</script></main><footer>Imprint</footer></body></html>"""
# Encrypted, with a password that is not empty: the hashes fit no password that is tried.
LOCKED = (
    "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    "2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    "3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\n"
    f"4 0 obj<</Filter/Standard/V 1/R 2/O<{'ab' * 32}>/U<{'cd' * 32}>/P -4>>endobj\n"
    f"trailer<</Root 1 0 R/Size 5/Encrypt 4 0 R/ID[<{'00' * 16}><{'00' * 16}>]>>\n%%EOF\n"
)


def read(source: TextFiles) -> tuple[list[str], Counter[str]]:
    tally = Counter()
    source, files = resolve(source)
    found = [
        document.text
        for file in files
        for document in read_span(source, Span(source=0, file=file), tally)
    ]
    return found, tally


def write_pdf(path: Path, *pages: list[str]) -> Path:
    """A PDF with these lines on its pages; a page without lines has a picture."""
    with PdfPages(path) as pdf:
        for lines in pages:
            figure = plt.figure(figsize=(8, 8))
            for number, line in enumerate(lines):
                figure.text(0.05, 0.95 - 0.03 * number, line, fontsize=8)
            if not lines:
                figure.add_subplot().imshow([[0, 1], [1, 0]])
                figure.axes[0].axis("off")
            pdf.savefig(figure)
            plt.close(figure)
    return path


def test_a_page_s_text_without_menus_scripts_and_code(tmp_path):
    (tmp_path / "page.html").write_text(PAGE)
    (text,), tally = read(TextFiles(paths=(str(tmp_path),)))
    assert [line for line in text.split("\n") if line] == [
        "A heading", "One bold word, a link and café.", "an item", "another",
    ]  # fmt: skip
    assert not tally


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-8"),
        ("", "utf-16"),
        ('<meta charset="utf-8">', "utf-8"),
        ("<meta charset=iso-8859-1>", "cp1252"),
        ("<meta charset=ISO_8859-1>", "cp1252"),
        ("<meta charset=iso-8859-9>", "cp1254"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "cp1251"),
        # A byte order mark outweighs what a page declares, and one in UTF-16 cannot declare it.
        ('<meta charset="iso-8859-1">', "utf-8-sig"),
        ('<meta charset="utf-16">', "utf-8"),
    ],
)
def test_the_encoding_that_a_page_declares_is_believed(tmp_path, head, encoding):
    said = "Съешь ещё" if encoding == "cp1251" else "Größe – “quoted”"
    page = f"<html><head>{head}</head><body><p>{said}</p></body></html>"
    (tmp_path / "page.html").write_bytes(page.encode(encoding))
    assert read(TextFiles(paths=(str(tmp_path),)))[0] == [said]


@pytest.mark.parametrize(
    ("beginning", "encoding", "text"),
    [
        ('<?xml version="1.0" encoding="windows-1251"?>', "cp1251", "Съешь ещё этих булок"),
        ('<?xml version="1.0"?><meta charset="windows-1251">', "cp1251", "Съешь ещё этих булок"),
        ('<meta charset="gb2312">', "gbk", "朱镕基与喆和囧的故事"),
        ('<meta charset="Shift_JIS">', "cp932", "①番の話です高橋髙"),
        ('<meta charset="x-sjis">', "cp932", "日本語の話です"),
        ('<meta charset="windows-31j">', "cp932", "①番の話です高橋髙"),
        ('<meta charset="sjis">', "cp932", "①番の話です高橋髙"),
        ('<meta charset="euc-kr">', "cp949", "똠방각하 펲시콜라"),
        ('<meta charset="windows-874">', "cp874", "ภาษาไทย “ไทย”"),
    ],
)
def test_a_declared_encoding_is_read_as_browsers_do(tmp_path, beginning, encoding, text):
    (tmp_path / "page.html").write_bytes(f"{beginning}<p>{text}</p>".encode(encoding))
    assert read(TextFiles(paths=(str(tmp_path),)))[0] == [text]


@pytest.mark.parametrize("head", ["", '<meta charset="utf-8">', '<meta charset="no-such-thing">'])
def test_a_page_in_another_encoding_than_it_says_is_left_out_and_counted(tmp_path, head):
    page = f"<html><head>{head}</head><body><p>Größe</p></body></html>"
    (tmp_path / "page.html").write_bytes(page.encode("cp1252"))
    found, tally = read(TextFiles(paths=(str(tmp_path),)))
    assert found == []
    assert tally == {extraction.OTHER_ENCODING: 1}


def test_lines_of_a_pdf_are_joined_to_paragraphs(tmp_path):
    lines = [
        "A heading",
        "The first paragraph is long enough to be broken into lines of which",
        "the second one is about as long as it, and the last one is",
        "shorter.",
        "The second paragraph begins on a line of its own, as is usual.",
    ]
    path = write_pdf(tmp_path / "a.pdf", lines, ["Another page."])
    pages, tally = read(TextFiles(paths=(str(path),), layout="page"))
    assert [page.split("\n") for page in pages] == [
        [lines[0], " ".join(lines[1:4]), lines[4]], ["Another page."],
    ]  # fmt: skip
    (text,), _ = read(TextFiles(paths=(str(path),)))
    assert text == "\n".join(pages)
    assert not tally


@pytest.mark.parametrize(
    ("lines", "paragraphs"),
    [
        (
            "日本語の文章がここから\r\n始まりまして次の行に続\r\nです。\r\n次の段落です。",
            ["日本語の文章がここから始まりまして次の行に続です。", "次の段落です。"],
        ),
        ("ภาษาไทยเป็นภาษาที่\r\nมีระดับเสียงของคำ\r\nแน่นอน", ["ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน"]),
        (
            "Съешь ещё этих мяг\x02\r\nких французских\r\nбулок",
            ["Съешь ещё этих мягких французских булок"],
        ),
    ],
)
def test_lines_of_a_page_are_joined_as_their_script_asks(lines, paragraphs):
    assert extraction.joined_lines(lines).split("\n") == paragraphs


def test_files_that_give_nothing_are_counted(tmp_path):
    (tmp_path / "empty.html").write_text("<html><body><nav>Home</nav><script>1</script></body>")
    (tmp_path / "damaged.pdf").write_text("%PDF-1.4 and no more")
    (tmp_path / "locked.pdf").write_text(LOCKED)
    for number in range(5):
        write_pdf(tmp_path / f"scan{number}.pdf", [])
    write_pdf(tmp_path / "whole.pdf", ["Some text."])
    texts, tally = read(TextFiles(paths=(str(tmp_path / "*.pdf"),)))
    pages, of_html = read(TextFiles(paths=(str(tmp_path / "*.html"),)))
    assert (texts, pages) == (["Some text."], [])
    assert tally + of_html == {extraction.NO_TEXT: 6, extraction.UNREADABLE_PDF: 2}


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.pdf"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(UserError, match=f"{name} is a pointer of Git LFS; fetch the file"):
        read(TextFiles(paths=(str(tmp_path / name),)))


@pytest.mark.parametrize("form", ["html", "pdf"])
def test_without_the_library_the_remedy_is_said(tmp_path, monkeypatch, form):
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    path = tmp_path / f"a.{form}"
    path.write_text(PAGE)
    source = TextFiles(paths=(str(path),))
    with pytest.raises(UserError, match=r"not installed; install it: pip install 'bertsmith\[doc"):
        check_inputs(CorpusSettings(sources=(source,)))
