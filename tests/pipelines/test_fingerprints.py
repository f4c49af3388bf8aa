"""What decides the bytes of an artifact is in its name, and nothing else is."""

import base64
import csv
import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from pipelines.config.versions import versions_of
from pipelines.io.text import Tally
from pipelines.stages.corpus.settings import (
    Files,
    Html,
    HuggingFaceDataset,
    InstalledDocumentation,
    JsonLines,
    Markdown,
    MediaWiki,
    Pdf,
    PlainText,
)
from pipelines.stages.corpus.sources.by_name import divided
from pipelines.stages.corpus.sources.inputs import (
    Span,
    inputs_fingerprint,
    libraries_of,
    read_span,
    resolve,
)


def name_of(source) -> str:
    return inputs_fingerprint([(0, file) for file in resolve(source).files])


def test_versions_are_those_of_here_whatever_the_order() -> None:
    assert versions_of("unicode", "pyarrow") == versions_of("pyarrow", "unicode")
    assert versions_of("python") == f"python 3.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PlainText(layout="file"), {"blingfire"}),
        (PlainText(layout="sentences"), set()),
        (JsonLines(), {"blingfire"}),
        (Html(), {"blingfire", "resiliparse"}),
        (Pdf(layout="file"), {"blingfire", "pypdfium2"}),
        (Markdown(), {"blingfire", "markdown-it-py", "python"}),
        (MediaWiki(), {"blingfire", "mwparserfromhell", "python"}),
        (InstalledDocumentation(), {"blingfire", "python"}),
    ],
)
def test_a_source_depends_on_the_libraries_that_read_it(source, expected) -> None:
    assert set(libraries_of(source)) == expected


def test_text_files_have_one_name_whichever_source_names_them(tmp_path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(f"A text of some length, number {number}.")
    (found,) = divided(Files(paths=(str(tmp_path),), layout="line"))
    assert found == PlainText(paths=(str(tmp_path),), layout="line")
    assert name_of(found) == name_of(PlainText(paths=(str(tmp_path / "*.txt"),), layout="line"))


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

    def load_dataset(*args, revision, **kwargs):
        read_at.append(revision)
        return datasets.Dataset.from_list([{"text": "A text."}])

    def dataset_info(self, name, revision):
        return SimpleNamespace(sha=next(commits))

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)  # no network
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    source, (file,), _ = resolve(HuggingFaceDataset(dataset="owner/name", revision="main"))
    list(read_span(source, Span(source=0, file=file), Tally()))
    assert read_at == ["a" * 40]
    later = resolve(HuggingFaceDataset(dataset="owner/name", revision="main")).files
    assert later[0].digest != file.digest
