"""What a recipe names is inspected before a run begins: quickly, a sentence for each fault."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import fsspec.core
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import UserError
from pipelines.stages.corpus.settings import (
    CorpusSettings,
    HuggingFaceDataset,
    InstalledDocumentation,
    TextFiles,
)
from pipelines.stages.corpus.sources import check_inputs

TEXT = "A sentence that is long enough to be kept."


def check(*sources) -> frozenset[str]:
    return check_inputs(CorpusSettings(sources=sources))


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def test_too_few_files_are_told_at_once_with_the_setting(tmp_path):
    path = write(tmp_path / "a.txt", f"{TEXT}\n\n" * 9)
    with pytest.raises(UserError, match=r"at least 4 documents.*has 1; .*--layout.*blank_line"):
        check(TextFiles(paths=(path,)))
    check(TextFiles(paths=(path,)), InstalledDocumentation(packages=("numpy",)))
    assert check(TextFiles(paths=(path,), layout="blank_line")) == {"a"}


def test_what_can_be_read_gives_its_labels(tmp_path):
    rows = "text,kind\n" + f"{TEXT},a\n" * 9
    csv = write(tmp_path / "rows.csv", rows)
    jsonl = write(tmp_path / "rows.jsonl", (json.dumps({"text": TEXT}) + "\n") * 9)
    parquet = str(tmp_path / "columns.parquet")
    pq.write_table(pa.table({"text": [TEXT] * 9}), parquet)
    pages = [write(tmp_path / f"{number}.md", f"# {TEXT}") for number in range(4)]
    assert check(TextFiles(paths=(csv,), label_field="kind")) == frozenset()
    assert check(TextFiles(paths=(jsonl, parquet))) == {"rows", "columns"}
    assert check(TextFiles(paths=tuple(pages), name="pages")) == {"pages"}
    assert check(InstalledDocumentation(packages=("numpy", "networkx"))) == {"numpy", "networkx"}


def test_what_is_not_there_is_told():
    for source, message in (
        (TextFiles(), "at least one path"),
        (TextFiles(paths=("/none/at/all.txt",)), "does not exist"),
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
        check(TextFiles(paths=(f"http://127.0.0.1:{port}/a.txt",)))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(UserError, match="does not answer"):
        check(TextFiles(paths=("s3://bucket/a.txt",)))


def test_the_checks_import_nothing_heavy():
    code = (
        "import sys; import pipelines.stages.corpus.sources, pipelines.stages.dataset.items; "
        "print([m for m in ('torch', 'ray', 'mlflow', 'prefect', 'pandas', 'datasets') "
        "if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
