"""What decides the bytes of an artifact is in its name, and nothing else is."""

import base64
import csv
import hashlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import datasets

from pipelines.stages.corpus.settings import HuggingFaceDataset, InstalledDocumentation, TextFiles
from pipelines.stages.corpus.sources import (
    Span,
    inputs_fingerprint,
    libraries_of,
    read_span,
    resolve,
)


def name_of(source) -> str:
    return inputs_fingerprint([(0, file) for file in resolve(source)[1]])


def test_files_depend_on_the_libraries_that_read_them(tmp_path) -> None:
    for name in ("a.txt", "b.html", "c.pdf", "d.csv"):
        (tmp_path / name).write_text("text")
    expected = [{"blingfire"}, {"blingfire", "resiliparse"}, {"blingfire", "pypdfium2"}]
    _, files = resolve(TextFiles(paths=(str(tmp_path),)))
    assert [libraries_of([file]) for file in files] == [*expected, {"blingfire"}]
    _, files = resolve(InstalledDocumentation(packages=("networkx",)))
    assert libraries_of(files) == {"blingfire", "python"}


def install(folder: Path, name: str, source: str) -> Path:
    """A package as pip leaves it in a folder."""
    file = folder / name / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()
    with (information / "RECORD").open("w", newline="") as stream:
        csv.writer(stream).writerow(
            [f"{name}/__init__.py", f"sha256={digest.rstrip('=')}", file.stat().st_size]
        )
    return file


def test_an_edited_source_file_is_another_input(tmp_path, monkeypatch) -> None:
    file = install(tmp_path, "edited_package", '"""What it was."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    source = InstalledDocumentation(packages=("edited_package",))
    before = name_of(source)
    assert name_of(source) == before
    file.write_text('"""What it is."""\n')  # its RECORD still says otherwise
    assert name_of(source) != before


def test_exactly_the_commit_that_names_a_data_set_is_read(monkeypatch) -> None:
    commits = iter(["a" * 40, "b" * 40])
    read_at: list[str | None] = []

    class Builder:
        def as_streaming_dataset(self, split: str) -> datasets.Dataset:
            return datasets.Dataset.from_list([{"text": "A text."}])

    def load_dataset_builder(*args, revision, **kwargs):
        read_at.append(revision)
        return Builder()

    def dataset_info(self, name, revision):
        return SimpleNamespace(sha=next(commits))

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)  # no network
    monkeypatch.setattr("datasets.load_dataset_builder", load_dataset_builder)
    source, (file,) = resolve(HuggingFaceDataset(dataset="owner/name", revision="main"))
    list(read_span(source, Span(source=0, file=file), Counter()))
    assert read_at == ["a" * 40]
    _, (later,) = resolve(HuggingFaceDataset(dataset="owner/name", revision="main"))
    assert later.digest != file.digest
