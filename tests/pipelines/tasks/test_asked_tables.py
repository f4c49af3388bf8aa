"""What a file or standard input asks, and that its answers lose nothing of it."""

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.inference.tables import answer_table
from bert_core.inference.tags import tag
from bert_core.model.catalogue import build_model
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, MISTAKE, run
from pipelines.inference.tables import read_table, write_table
from pipelines.tasks import Items, Reading, family
from tests.pipelines.tasks.letters import CONFIG, TOKENS

HEADS = {
    "sequence_classification": {"num_labels": 2, "labels": ("good", "bad")},
    "token_classification": {"num_labels": 2, "labels": ("O", "B-V")},
    "multiple_choice": {},
    "span_prediction": {},
}
SENTENCES = [["ab", "c,d", "e"], ["f\u200b", "g"]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for head, settings in HEADS.items():
        torch.manual_seed(0)
        config = EncoderConfig.from_dict({**CONFIG.to_dict(), "hidden_size": 32})
        save_model(folder / head, build_model(head, config, **settings))
        WordPieceTokenizer(TOKENS).save(folder / head)
    return folder


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_columns_of_a_file_come_out_as_they_went_in(models: Path, tmp_path: Path) -> None:
    rows = [
        {"id": 7, "review": "a b", "label": "gold", "text": "mine", "when": None},
        {"id": 8, "review": "c", "label": "other", "text": "", "when": "today"},
    ]
    asked, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["--model", str(models / "sequence_classification"), "--home", str(tmp_path)]
    columns = ["--file", str(asked), "--text-column", "review"]
    assert run(["predict", *columns, "--out", str(out), *named]) == DONE
    for row, answered in zip(rows, rows_of(out), strict=True):
        assert {name: answered[name] for name in row} == row
        assert set(answered) - set(row) == {"predicted_label", "probability"}
    # Answered again, over itself.
    again = ["--file", str(out), "--text-column", "review", "--out", str(out)]
    assert run(["predict", *again, *named]) == DONE
    for row, answered in zip(rows, rows_of(out), strict=True):
        assert {name: answered[name] for name in row} == row
        assert answered["predicted_predicted_label"] == answered["predicted_label"]


def test_dates_and_objects_of_a_file_are_written_too(models: Path, tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa

    day = datetime.date(2026, 11, 22)
    pq.write_table(
        pa.table({"text": ["a"], "day": [day], "of": [{"n": 1}]}), tmp_path / "a.parquet"
    )
    named = ["--model", str(models / "sequence_classification"), "--home", str(tmp_path)]
    for suffix in ("jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{suffix}"
        asked = ["--file", str(tmp_path / "a.parquet"), "--out", str(out)]
        assert run(["predict", *asked, *named]) == DONE
    assert rows_of(tmp_path / "out.jsonl")[0]["day"] == "2026-11-22"
    assert read_table(str(tmp_path / "out.csv")).columns["of"] == ['{"n": 1}']
    assert pq.read_table(tmp_path / "out.parquet").to_pylist()[0]["day"] == day


def test_columns_that_parquet_cannot_hold_are_told_before_anything_is_answered(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "one"}\n')
    asked = ["--file", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "a.parquet")]
    assert run(["predict", *asked, "--model", "none", "--home", str(tmp_path)]) == MISTAKE
    assert "mixes values of several kinds" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["words", "split"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_words_that_are_split_already_are_tagged_as_they_were_learned(
    models: Path, tmp_path: Path, name: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = models / "token_classification"
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    items = Items([{"words": words, "tags": ["O"] * len(words)} for words in SENTENCES])
    learned = family("tagging").answers(model, tokenizer, items, Reading(32)).values
    gold = [["O"] * len(words) for words in SENTENCES]
    write_table(tmp_path / f"in.{suffix}", {"text": ["x", "y"], name: SENTENCES, "tags": gold})
    asked = ["predict", "--file", str(tmp_path / f"in.{suffix}"), "--home", str(tmp_path)]
    if name == "split":
        asked += ["--text-column", name]
    out = tmp_path / "out.jsonl"
    assert run([*asked, "--model", str(folder), "--out", str(out)]) == DONE
    found = rows_of(out)
    assert [row["predicted_tags"] for row in found] == learned
    assert [row[name] for row in found] == SENTENCES
    assert [row["tags"] for row in found] == gold
    assert f"words is its column '{name}'" in capsys.readouterr().err.replace("text is", "words is")
    assert answer_table(model, tokenizer, {"words": SENTENCES})["tags"] == learned
    alone = answer_table(model, tokenizer, {"text": ["ab e", None], "words": [None, SENTENCES[1]]})
    assert alone["words"] == [["ab", "e"], SENTENCES[1]]
    assert alone["tags"][1] == learned[1]


def test_words_are_a_list_of_texts(models: Path) -> None:
    folder = models / "token_classification"
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    for wrong in ("ab", [("a", "b")], [["a", 1]], []):
        with pytest.raises(ValueError, match=r"must be|at least one"):
            tag(model, tokenizer, wrong)
    with pytest.raises(ValueError, match="found none in row 1"):
        answer_table(model, tokenizer, {"words": [["a"], ["b", None]]})
    (tagged,) = tag(model, tokenizer, [["ab", "c"]])
    assert [(word.word, word.begin, word.end) for word in tagged] == [("ab", 0, 2), ("c", 3, 4)]


@pytest.mark.parametrize(
    ("head", "line", "arguments"),
    [
        ("multiple_choice", "a\tb\tc d\n", ["a", "b", "c d"]),
        ("span_prediction", "a\tb c d\n", ["a", "b c d"]),
        ("span_prediction", "a\tb c\td\n", ["a", "b c\td"]),
        ("token_classification", "ab c\n", ["ab c"]),
    ],
)
def test_standard_input_asks_what_arguments_ask(
    models: Path, tmp_path: Path, head: str, line: str, arguments: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    named = ["--model", str(models / head), "--home", str(tmp_path), "--json"]
    assert run(["predict", *arguments, *named]) == DONE
    expected = capsys.readouterr().out
    typed = io.TextIOWrapper(io.BytesIO(line.encode()))
    monkeypatch.setattr("sys.stdin", typed)
    assert run(["predict", *named]) == DONE
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("head", ["multiple_choice", "span_prediction"])
def test_a_line_without_its_second_text_is_told(
    head: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one text\n")))
    named = ["--model", str(models / head), "--home", str(tmp_path)]
    assert run(["predict", *named]) == MISTAKE
    assert "in a line with tabs between them" in capsys.readouterr().err


def test_who_answered_and_which_columns_were_taken_is_said_beside_the_answers(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("sentence,id\na b,1\n")
    model = models / "sequence_classification"
    asked = ["--file", str(tmp_path / "a.csv"), "--text-column", "sentence", "--json"]
    assert run(["predict", *asked, "--model", str(model), "--home", str(tmp_path)]) == DONE
    said = capsys.readouterr()
    assert set(json.loads(said.out)) == {"sentence", "id", "label", "probability"}
    assert f"model: {model}" in said.err
    assert "text is its column 'sentence'" in said.err
