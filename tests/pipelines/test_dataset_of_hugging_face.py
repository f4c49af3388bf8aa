"""Hugging Face datasets as labelled items: copies on the disk, classes by their names."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.dataset.items import check_inputs, read_labelled
from pipelines.stages.dataset.settings import DatasetSettings, LabelledDataset, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import family

PAIRS = Features(
    {
        "text": Value("string"),
        "second_text": Value("string"),
        "label": ClassLabel(names=["not_equivalent", "equivalent"]),
        "idx": Value("int32"),
    }
)


def rows(count: int, first: int = 0) -> Dataset:
    """Pairs as GLUE's MRPC has them on the hub."""
    numbers = range(first, first + count)
    return Dataset.from_dict(
        {
            "text": [f"first {n}" for n in numbers],
            "second_text": [f"second {n}" for n in numbers],
            "label": [n % 2 for n in numbers],
            "idx": list(numbers),
        },
        features=PAIRS,
    )


def built(tmp_path: Path, family: str = "classification", **settings: Any) -> Artifact:
    dataset = DatasetSettings(family=family, source=LabelledDataset(**settings))
    check_inputs(dataset)
    context = StageContext(store=ArtifactStore(str(tmp_path / "store")))
    return build_dataset(dataset, None, context)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A dataset with two splits, as `save_to_disk` writes it."""
    folder = tmp_path / "mrpc"
    DatasetDict({"train": rows(40), "validation": rows(10, 40)}).save_to_disk(str(folder))
    return folder


def test_splits_are_the_parts_and_classes_have_names(copy: Path, tmp_path: Path) -> None:
    dataset = built(tmp_path, dataset=str(copy), heldout_split="validation")
    train, heldout = read_items(dataset, "train"), read_items(dataset, "heldout")
    assert [len(part.rows) for part in (train, heldout)] == [40, 10]
    assert train.labels == ("equivalent", "not_equivalent")
    assert heldout.rows[1] == {
        "text": "first 41", "second_text": "second 41", "label": "equivalent"
    }  # fmt: skip


def test_the_same_bytes_at_another_place_are_the_same_items(copy: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(copy, moved)
    first, second = (built(tmp_path, dataset=str(place)) for place in (copy, moved))
    assert first.fingerprint == second.fingerprint
    file = next(moved.rglob("*.arrow"))
    file.write_bytes(file.read_bytes().replace(b"first 7", b"fourth7"))
    assert built(tmp_path, dataset=str(moved)).fingerprint != first.fingerprint


def test_a_folder_of_data_files_is_a_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    rows(30).to_parquet(folder / "train.parquet")
    rows(8, 30).to_parquet(folder / "validation.parquet")
    dataset = built(tmp_path, dataset=str(folder), heldout_split="validation")
    assert dataset.statistics["labels"] == ["equivalent", "not_equivalent"]
    assert dataset.statistics["items"] == {"train": 30, "heldout": 8}


def test_a_class_that_is_none_is_refused_with_its_row(copy: Path, tmp_path: Path) -> None:
    hidden = rows(10).map(lambda row: {"label": -1 if row["idx"] == 3 else row["label"]})
    DatasetDict({"train": rows(20), "test": hidden}).save_to_disk(str(tmp_path / "hidden"))
    with pytest.raises(UserError, match=r"hidden, split test must have a label.* in row 4;"):
        built(tmp_path, dataset=str(tmp_path / "hidden"), heldout_split="test")


def of_file(path: Path, family_name: str, **settings: Any) -> list[dict[str, Any]]:
    source = LabelledFile(path=str(path), **settings)
    found = read_labelled(str(path), family(family_name), source)
    return [each.item for each in found]


def test_one_parquet_file_of_a_data_set_knows_the_names_of_its_classes(tmp_path: Path) -> None:
    path = tmp_path / "mrpc.parquet"
    rows(4).map(lambda row: {"label": -1 if row["idx"] == 3 else row["label"]}).to_parquet(path)
    with pytest.raises(UserError, match="must have a label, found none in row 4"):
        of_file(path, "classification")
    rows(3).to_parquet(path)
    found = of_file(path, "classification")
    assert [item["label"] for item in found] == ["not_equivalent", "equivalent", "not_equivalent"]
    features = Features(
        {"words": List(Value("string")), "tags": List(ClassLabel(names=["O", "B-PER"]))}
    )
    tagged = {"words": [["Ada", "wrote"]], "tags": [[1, 0]]}
    Dataset.from_dict(tagged, features=features).to_parquet(tmp_path / "ner.parquet")
    assert of_file(tmp_path / "ner.parquet", "tagging")[0]["tags"] == ["B-PER", "O"]
    many = {"words": [["Ada", "wrote", str(n)] for n in range(30)], "tags": [[1, 0, 0]] * 30}
    Dataset.from_dict(many, features=features).save_to_disk(str(tmp_path / "ner"))
    dataset = built(tmp_path, "tagging", dataset=str(tmp_path / "ner"))
    assert read_items(dataset, "train").rows[0]["tags"] == ["B-PER", "O", "O"]


def test_the_class_of_an_answer_is_its_index(tmp_path: Path) -> None:
    features = Features(
        {
            "text": Value("string"),
            "choices": List(Value("string")),
            "label": ClassLabel(names=["A", "B", "C"]),
        }
    )
    row = {"text": ["x"] * 20, "choices": [["C", "A", "B"]] * 20, "label": [2, 0] * 10}
    found = Dataset.from_dict(row, features=features)
    found.to_parquet(tmp_path / "mmlu.parquet")
    assert of_file(tmp_path / "mmlu.parquet", "multiple_choice")[0]["answer"] == 2
    found = found.map(lambda row, index: {"text": f"x {index}"}, with_indices=True)
    found.save_to_disk(str(tmp_path / "mmlu"))
    dataset = built(tmp_path, "multiple_choice", dataset=str(tmp_path / "mmlu"))
    assert read_items(dataset, "train").rows[0]["answer"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "nowhere"}, "has no split nowhere of the configuration .default."),
        ({"heldout_split": "dev"}, "no split dev"),
        ({"heldout_split": "train"}, "every item of train is trained on"),
        ({"dataset": ""}, "needs the name of a dataset"),
        ({"label_column": "answer"}, "has no column 'answer', only text, second_text"),
    ],
)
def test_a_mistake_is_told_before_anything_is_built(
    changes: dict[str, str], message: str, copy: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        built(tmp_path, **({"dataset": str(copy)} | changes))
    assert not (tmp_path / "store").exists()


def test_a_data_set_of_csv_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.csv").write_text("text,label\nNone,01\n" * 20)
    with pytest.raises(UserError, match=r"is made of CSV files, whose values .* give the files"):
        built(tmp_path, dataset=str(tmp_path / "files"))


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HF_HUB_OFFLINE", True), ("ENDPOINT", "http://127.0.0.1:9")):
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match="is neither a local folder nor found on the hub"),
        ):
            patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
            patch.setattr(f"huggingface_hub.constants.{name}", value)
            built(tmp_path, dataset="nyu-mll/glue", configuration="mrpc")
