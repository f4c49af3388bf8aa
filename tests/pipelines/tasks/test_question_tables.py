"""Tables of questions are read as people have them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_core.inference.tables import question_of
from bert_core.model.catalogue import MODELS, build_model
from pipelines.errors import UserError
from pipelines.predict.answers import asked_of, check_rows
from pipelines.predict.tables import read_shards, read_table
from tests.pipelines.tasks.letters import CONFIG

PAIRS = question_of(MODELS["regression"])


def test_rows_have_their_numbers_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\none\u2028two\n \nthree\r\n", newline="")
    assert read_table(str(tmp_path / "a.txt"))[1:] == (
        [1, 3], {"text": ["one\u2028two", "three"]},
    )  # fmt: skip
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n\n{"second_text": "y", "text": "z"}\n')
    assert read_table(str(tmp_path / "a.jsonl"))[1:] == (
        [0, 2], {"text": ["x", "z"], "second_text": [None, "y"]},
    )  # fmt: skip
    (tmp_path / "a.csv").write_text('text\n"one\ntwo"\nthree\n')
    assert read_table(str(tmp_path / "a.csv")).numbers == [0, 1]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("rows_a_shard", [1, 2, 3])
def test_shards_of_a_file_hold_its_rows_in_order(
    tmp_path: Path, suffix: str, rows_a_shard: int
) -> None:
    path = tmp_path / f"a{suffix}"
    texts = {
        ".txt": "one\n\ntwo\nthree", ".csv": "text,n\none,1\ntwo,2\nthree,3\n",
        ".jsonl": '{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n',
    }  # fmt: skip
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": ["one", "two", "three"], "n": [1, 2, 3]}), path)
    else:
        path.write_text(texts[suffix])
    whole, found = read_table(str(path)), list(read_shards(str(path), rows_a_shard))
    assert [number for shard in found for number in shard.numbers] == whole.numbers
    assert all(len(shard.numbers) <= rows_a_shard for shard in found)
    assert list(whole.columns)
    for name, values in whole.columns.items():
        assert [value for shard in found for value in shard.columns[name]] == values


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", "one", r"a\.pdf is not read by its name; questions are \.txt"),
        ("a.csv", "text\none,two\n", "line 2 of .*has 2 columns"),
        ("a.txt", "\ufeffone\n\ufefftwo\n", "line 2 of .* begins with a byte order mark"),
        ("a.csv", "sentence\none\n", "has no column 'body', only sentence; set --text-column"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        asked_of(read_table(str(tmp_path / name)), PAIRS, "body", None)


def test_a_cell_that_is_no_text_or_no_list_is_refused(tmp_path: Path) -> None:
    model = build_model("multiple_choice", CONFIG)
    for row, message in (
        ({"text": "a", "choices": "b c"}, "choices must be a list of texts, found 'b c'"),
        ({"text": "a", "choices": [{"text": "b"}]}, "choices must be a list of texts, found"),
        ({"text": "a", "choices": ["b", ["c"]]}, "choices must be a list of texts, found"),
        ({"text": ["a"], "choices": ["b", "c"]}, "text must be a text, found"),
        ({"text": b"a", "choices": ["b", "c"]}, "text must be a text, found"),
    ):
        with pytest.raises(UserError, match=f"row 7 of a, counted from 0: {message}"):
            check_rows(model, {name: [cell] for name, cell in row.items()}, [7], "a")
    # Of one choice the model would always be sure.
    for choices, lacking in (
        ([], "choices"), (["b"], "second choice"), ([7], "second choice"),
        (["b", " "], "text in each of its choices"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"row 7 of a, counted from 0, has no {lacking}; fill"):
            check_rows(model, {"text": ["a"], "choices": [choices]}, [7], "a")
