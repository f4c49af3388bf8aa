"""What a recipe names is inspected before a run begins: quickly, a sentence for each fault."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import fsspec.core
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.errors import UserError
from pipelines.stages.corpus.checks import check_inputs
from pipelines.stages.corpus.settings import (
    Columnar,
    CorpusSettings,
    DelimitedText,
    HuggingFaceDataset,
    InstalledDocumentation,
    JsonLines,
    Markdown,
    PlainText,
)

NOVELS = Path("../shared/data/corpus/english_novels")
TEXT = "A sentence that is long enough to be kept."


def check(*sources) -> frozenset[str]:
    return check_inputs(CorpusSettings(sources=sources))


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("layout", "content", "message"),
    [
        ("file", f"{TEXT}\n\n" * 9, "has 1; .*finer layout such as blank_line"),
        ("blank_line", TEXT * 9, "has 1"),
        ("line", f"{TEXT}\n{TEXT}\nshort\n{TEXT}\n", "has 3"),
        ("auto", TEXT * 9, "has 1"),
        ("auto", "", "has none"),
    ],
)
def test_too_few_documents_are_told_at_once(tmp_path, layout, content, message):
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=rf"at least 4 documents.*{message}"):
        check(PlainText(paths=(path,), layout=layout))
    check(PlainText(paths=(path,), layout=layout), InstalledDocumentation(packages=("numpy",)))


def test_one_book_is_enough_where_its_paragraphs_are_documents(tmp_path):
    path = write(tmp_path / "book.txt", f"{TEXT}\n\n" * 9)
    assert check(PlainText(paths=(path,))) == {"book"}


def test_what_can_be_read_gives_its_labels(tmp_path):
    rows = "text,kind\n" + f"{TEXT},a\n" * 9
    csv = write(tmp_path / "rows.csv", rows)
    jsonl = write(tmp_path / "rows.jsonl", (json.dumps({"text": TEXT}) + "\n") * 9)
    parquet = str(tmp_path / "columns.parquet")
    pq.write_table(pa.table({"text": [TEXT] * 9}), parquet)
    pages = [write(tmp_path / f"{number}.md", f"# {TEXT}") for number in range(4)]
    assert check(DelimitedText(paths=(csv,), label_field="kind")) == frozenset()
    assert check(JsonLines(paths=(jsonl,)), Columnar(paths=(parquet,))) == {"rows", "columns"}
    assert check(Markdown(paths=tuple(pages), name="pages")) == {"pages"}
    assert check(InstalledDocumentation(packages=("numpy", "networkx"))) == {"numpy", "networkx"}


@pytest.mark.parametrize(
    ("source", "name", "content", "message"),
    [
        (DelimitedText, "a.csv", "body\nx\n", "has no column 'text', only body"),
        (JsonLines, "a.jsonl", '{"body": 1}\n' * 9, "has no column 'text', only body"),
        (Columnar, "a.parquet", b"PAR1 and no more", "is not a whole Parquet or Arrow file"),
        (PlainText, "a.txt", bytes(range(32)) * 99, "is not text"),
        (PlainText, "a.txt.gz", b"no gzip at all", "is not a whole gzip file"),
        (Markdown, "a.md", "\ufeffx".encode("utf-16"), "is UTF-16; convert it"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, source, name, content, message):
    with pytest.raises(UserError, match=message):
        check(source(paths=(write(tmp_path / name, content),)))


def test_pipes_devices_sockets_and_loose_links_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loose.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "link.txt").symlink_to(tmp_path / "pipe.txt")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket.txt"))
    listening.close()
    for name, found in (
        (tmp_path / "pipe.txt", "a pipe"),
        (tmp_path / "link.txt", "a pipe"),
        (tmp_path / "loose.txt", "a link to nothing"),
        (tmp_path / "socket.txt", "a socket"),
        (Path("/dev/zero"), "a device"),
        (tmp_path / "pipe*.txt", "a pipe"),
        (tmp_path, "a pipe|a link to nothing|a socket"),
    ):
        with pytest.raises(UserError, match=f" is ({found})"):
            check(PlainText(paths=(str(name),)))


def test_what_is_not_there_is_told():
    for source, message in (
        (PlainText(), "at least one path"),
        (PlainText(paths=("/none/at/all.txt",)), "does not exist"),
        (InstalledDocumentation(packages=("no-such-package",)), "is not installed"),
        (HuggingFaceDataset(), "needs the name of a dataset"),
    ):
        with pytest.raises(UserError, match=message):
            check(source)


def test_servers_that_do_not_answer_are_told_at_once(monkeypatch):
    """By a connection alone: libraries of object stores try again and again."""
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda *_, **__: pytest.fail("was asked"))
    monkeypatch.setattr("pipelines.io.files.url_to_fs", fsspec.core.url_to_fs)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port} does not answer"):
        check(PlainText(paths=(f"http://127.0.0.1:{port}/a.txt",)))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(UserError, match="does not answer"):
        check(PlainText(paths=("s3://bucket/a.txt",)))


def test_an_object_store_without_credentials_is_told(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UserError, match="no credentials for it were found"):
        check(PlainText(paths=("s3://some-bucket/a.txt",)))


def test_the_checks_import_nothing_heavy():
    code = (
        "import sys; import pipelines.stages.corpus.checks, pipelines.stages.dataset.items; "
        "print([m for m in ('torch', 'ray', 'mlflow', 'prefect', 'pandas', 'pyarrow', 'datasets') "
        "if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_eighty_novels_are_looked_at_and_not_read():
    if not NOVELS.exists():
        pytest.skip("the English novels are not on this machine")
    num_characters = sum(path.stat().st_size for path in NOVELS.rglob("*.txt"))
    check(PlainText(paths=(str(NOVELS),)))  # imports what it needs
    before = psutil.Process().io_counters().read_chars
    assert len(check(PlainText(paths=(str(NOVELS),)))) > 70
    assert psutil.Process().io_counters().read_chars - before < num_characters / 10
