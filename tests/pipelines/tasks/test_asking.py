"""Tables of questions are read as people have them, asked of a model, and written with answers."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.inference.questions import question_of_class
from bert_core.inference.tables import answer_table
from bert_core.model.catalogue import MODELS, build_model
from bert_core.model.sentence_encoder import SentenceEncoder
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, MISTAKE, run
from pipelines.config.errors import UserError
from pipelines.inference.answers import asked_of
from pipelines.inference.tables import (
    json_lines,
    read_shards,
    read_table,
    write_table,
)
from tests.pipelines.tasks.letters import CONFIG, TOKENS

TABLE = {"text": ["a b", 'say "c", d'], "second_text": ["x", "y\tz"]}
PAIRS = question_of_class(MODELS["regression"])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_table_comes_back_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_table(path, TABLE)
    assert read_table(str(path)).columns == TABLE
    asked = asked_of(read_table(str(path)), {"text": "second_text"}, PAIRS)
    assert asked.columns == {"text": TABLE["second_text"], "second_text": TABLE["second_text"]}
    assert [path.name for path in tmp_path.iterdir()] == [f"a{suffix}"]


def test_lists_are_json_in_a_cell(tmp_path: Path) -> None:
    write_table(tmp_path / "a.tsv", {"words": [["a", "é"]], "value": [1.5]})
    assert (tmp_path / "a.tsv").read_text().splitlines() == [
        "words\tvalue", '["a", "é"]\t1.5',
    ]  # fmt: skip
    assert list(json_lines({"words": [["é"]]})) == ['{"words": ["é"]}']


def test_a_file_of_text_holds_a_text_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n  two \n")
    assert read_table(str(tmp_path / "a.txt")).columns == {"text": ["one", "two"]}


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
    if suffix == ".txt":
        path.write_text("one\n\ntwo\nthree")
    else:
        write_table(path, {"text": ["one", "two", "three"], "n": ["1", "2", "3"]})
    whole, found = read_table(str(path)), list(read_shards(str(path), rows_a_shard))
    assert [number for shard in found for number in shard.numbers] == whole.numbers
    assert all(len(shard.numbers) <= rows_a_shard for shard in found)
    assert list(whole.columns)
    for name, values in whole.columns.items():
        assert [value for shard in found for value in shard.columns[name]] == values


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\none\ntwo\nthree,four\n")
    shards = read_shards(str(tmp_path / "a.csv"), 2)
    assert next(shards).columns == {"text": ["one", "two"]}
    with pytest.raises(UserError, match="line 4"):
        next(shards)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_bytes_that_are_not_utf_8_are_read_as_windows_1252(tmp_path: Path, suffix: str) -> None:
    content = {"csv": "text\ncaf\xe9\n", "jsonl": '{"text": "caf\xe9"}\n'}[suffix]
    (tmp_path / f"a.{suffix}").write_bytes(content.encode("cp1252"))
    assert read_table(str(tmp_path / f"a.{suffix}")).columns == {"text": ["caf\xe9"]}


def test_a_parquet_file_that_is_cut_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", TABLE)
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"a\.parquet is not a whole Parquet file"):
        read_table(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", "\0\1\2\3" * 99, "is not text: .* control characters"),
        ("a.csv", "text\none,two\n", "line 2 of .*found 2 fields"),
        ("a.jsonl", "{]", "line 1 of .*found no JSON"),
        ("a.csv", "sentence\none\n", "has no column 'body', found sentence"),
        ("a.json", '[{"text": "a"}]', r"a\.json is JSON, but not an object a line by its name"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        asked_of(read_table(str(tmp_path / name)), {"text": "body"}, PAIRS)


HEADS = {
    "sequence_classification": {"num_labels": 2, "labels": ("good", "bad")},
    "multi_label_classification": {"num_labels": 2, "labels": ("good", "bad")},
    "token_classification": {"num_labels": 2, "labels": ("O", "B-V")},
    "regression": {},
    "multiple_choice": {},
    "span_prediction": {},
    "encoder": {},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for head, settings in HEADS.items():
        torch.manual_seed(0)
        config = EncoderConfig.from_dict({**CONFIG.to_dict(), "hidden_size": 32})
        save_model(folder / head, build_model(head, config, **settings))
        WordPieceTokenizer(TOKENS).save(folder / head)
    (folder / "a.csv").mkdir()
    return folder


@pytest.mark.parametrize(
    ("earlier", "head", "arguments", "expected"),
    [
        ("predict", "sequence_classification", ["a b"], {"label", "probability"}),
        ("predict", "multi_label_classification", ["a b", "c"], {"labels"}),
        ("tag", "token_classification", ["ab c"], {"words", "tags"}),
        ("rate", "regression", ["a b"], {"value"}),
        ("choose", "multiple_choice", ["a", "b", "c"], {"choice", "probability"}),
        ("answer", "span_prediction", ["a", "b c d"], {"answer", "begin", "null_lead"}),
        ("embed", "encoder", ["a b"], {"embedding"}),
    ],
)
def test_every_head_answers_on_the_command_line(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    earlier: str,
    head: str,
    arguments: list[str],
    expected: set[str],
) -> None:
    named = ["--model", str(models / head), "--home", str(tmp_path)]
    assert run(["predict", *arguments, *named]) == DONE
    answered = capsys.readouterr().out
    assert answered.strip()
    assert run([earlier, *arguments, *named]) == DONE
    assert capsys.readouterr().out == answered
    assert run(["predict", *arguments, *named, "--json"]) == DONE
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert expected <= set(row)
    out = tmp_path / "out.parquet"
    assert run(["predict", *arguments, *named, "--out", str(out)]) == DONE
    assert "rows" in capsys.readouterr().out
    assert set(pq.read_table(out).to_pylist()[0]) == set(row)


def test_a_table_is_answered_row_by_row(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"s1": ["a", "b c"], "s2": ["x", "y z"]}), tmp_path / "in.parquet")
    named = ["--model", str(models / "regression"), "--home", str(tmp_path), "--json"]
    columns = ["--text-column", "s1", "--second-text-column", "s2"]
    assert run(["predict", "--file", str(tmp_path / "in.parquet"), *columns, *named]) == DONE
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["s1"], row["s2"]) for row in rows] == [("a", "x"), ("b c", "y z")]


@pytest.mark.parametrize("nothing", [None, float("nan"), pd.NA])
def test_a_text_that_is_not_there_is_refused_and_a_second_one_stands_for_none(
    models: Path, nothing: object
) -> None:
    tokenizer = WordPieceTokenizer(TOKENS)
    regression, spans, choices = (
        load_model(models / head) for head in ("regression", "span_prediction", "multiple_choice")
    )
    pairs = {"text": ["a", "b"], "second_text": ["x", nothing]}
    alone = answer_table(regression, tokenizer, {"text": ["b"]})["value"]
    assert answer_table(regression, tokenizer, pairs)["value"][1] == pytest.approx(alone[0])
    for model, column, table in (
        (regression, "text", {"text": ["a", nothing]}),
        (spans, "context", {"question": ["a", "b"], "context": ["c", nothing]}),
        (choices, "choices", {"text": ["a", "b"], "choices": [["c", "d"], ["e", nothing]]}),
        (choices, "choices", {"text": ["a", "b"], "choices": [["c", "d"], nothing]}),
        (SentenceEncoder(CONFIG), "second_text", pairs),
    ):
        with pytest.raises(ValueError, match=f"have a {column}, found none in row 1, counted"):
            answer_table(model, tokenizer, table)


@pytest.mark.parametrize("nothing", ["", "  "])
def test_a_blank_text_is_none(models: Path, nothing: str) -> None:
    tokenizer = WordPieceTokenizer(TOKENS)
    heads = ("regression", "multiple_choice", "token_classification")
    regression, choices, tagger = (load_model(models / head) for head in heads)
    pairs = {"text": ["a", "b"], "second_text": ["x", nothing]}
    alone = answer_table(regression, tokenizer, {"text": ["b"]})["value"]
    assert answer_table(regression, tokenizer, pairs)["value"][1] == pytest.approx(alone[0])
    both = {"text": ["a b"], "words": [nothing]}
    assert answer_table(tagger, tokenizer, both)["words"] == [["a", "b"]]
    # But an empty context has an answer: none.
    spans, asked = load_model(models / "span_prediction"), {"question": ["a"], "context": [nothing]}
    assert answer_table(spans, tokenizer, asked)["answer"] == [""]
    for model, column, table in (
        (regression, "text", {"text": ["a", nothing]}),
        (choices, "choices", {"text": ["a", "b"], "choices": [["c", "d"], nothing]}),
        (choices, "choices", {"text": ["a", "b"], "choices": [["c", "d"], []]}),
        (SentenceEncoder(CONFIG), "second_text", pairs),
    ):
        with pytest.raises(ValueError, match=f"have a {column}, found none in row 1, counted"):
            answer_table(model, tokenizer, table)


def test_cells_of_a_table_of_text_are_lists_of_choices_and_empty_ones_nothing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists, written = tmp_path / "lists.jsonl", tmp_path / "written.csv"
    rows = [{"text": "a", "choices": ["b", "c d"]}, {"text": "b", "choices": ["a", "e", "f"]}]
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chooser = ["--model", str(models / "multiple_choice"), "--home", str(tmp_path)]
    assert run(["predict", "--file", str(lists), "--out", str(written), *chooser]) == DONE
    assert run(["predict", "--file", str(lists), "--json", *chooser]) == DONE
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert run(["predict", "--file", str(written), "--json", *chooser]) == DONE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for name in ("choice", "probability"):
        assert [row[f"predicted_{name}"] for row in found] == [row[name] for row in expected]
    written.write_text("text,choices\na,b or c\n")
    assert run(["predict", "--file", str(written), *chooser]) == MISTAKE
    assert "are written as a list" in capsys.readouterr().err

    pairs, alone = tmp_path / "pairs.csv", tmp_path / "alone.csv"
    pairs.write_text("text,second_text\na,x\nb,\n")
    alone.write_text("text\nb\n")
    rater = ["--model", str(models / "regression"), "--home", str(tmp_path), "--json"]
    values = []
    for path in (pairs, alone):
        assert run(["predict", "--file", str(path), *rater]) == DONE
        values.append(json.loads(capsys.readouterr().out.splitlines()[-1])["value"])
    assert values[0] == pytest.approx(values[1])
    alone.write_text("text,other\na,1\n,2\n")
    assert run(["predict", "--file", str(alone), *rater]) == MISTAKE
    assert "row 1 of what is asked, counted from 0, has no text" in capsys.readouterr().err


def test_a_row_without_a_text_is_told_before_any_is_answered(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["a"] * 3000 + [None]
    pq.write_table(pa.table({"text": rows}), tmp_path / "in.parquet")
    named = ["--model", str(models / "regression"), "--home", str(tmp_path)]
    assert run(["predict", "--file", str(tmp_path / "in.parquet"), *named]) == MISTAKE
    assert "row 3000 of what is asked, counted from 0, has no text" in capsys.readouterr().err


def test_a_list_or_a_table_is_no_text(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--model", str(models / "regression"), "--home", str(tmp_path)]
    for value in (["a", "b"], {"a": "b"}):
        path = tmp_path / "in.jsonl"
        path.write_text("\n".join(json.dumps({"text": text}) for text in ("a", value)))
        assert run(["predict", "--file", str(path), *named]) == MISTAKE
        assert "row 1 of what is asked, counted from 0: text must be a text" in (
            capsys.readouterr().err
        )


def test_texts_of_parquet_may_be_bytes_of_any_kind(models: Path, tmp_path: Path) -> None:
    texts = pa.array([b"a", "é".encode(), "é".encode("cp1252")])
    named = ["--model", str(models / "regression"), "--home", str(tmp_path)]
    for column in (texts, texts.view(pa.string())):
        pq.write_table(pa.table({"text": column}), tmp_path / "in.parquet")
        asked = asked_of(read_table(str(tmp_path / "in.parquet")), {}, PAIRS)
        assert asked.columns == {"text": ["a", "é", "é"]}
        for suffix in ("jsonl", "csv", "parquet"):
            out = tmp_path / f"out.{suffix}"
            wanted = ["--file", str(tmp_path / "in.parquet"), "--out", str(out)]
            assert run(["predict", *wanted, *named]) == DONE
            again = asked_of(read_table(str(out)), {}, PAIRS)
            assert again.columns["text"] == ["a", "é", "é"]
        assert pq.read_table(out).column("text").to_pylist() == texts.to_pylist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "a", "b", "--model", "{models}/multiple_choice"], "two or more choices"),
        (["predict", "a", "--model", "{models}/span_prediction"], "a question and a context"),
        (
            ["predict", "a", "--no-answer-above", "0", "--model", "{models}/regression"],
            "is for question answering",
        ),
        (["predict", "a", "--task", "tags"], "--task is classification, multi-label"),
        (["predict", "a", "--file", "a.csv"], "either texts or --file"),
        (["predict", "a", "--out", "a.pdf", "--model", "{models}/tag"], "answers are written to"),
        (["predict", "a", "--out", "/no/where.csv", "--model", "x"], "in a folder that exists"),
        (["predict", "a", "--out", "{models}/a.csv", "--model", "x"], "found the folder"),
    ],
)
def test_mistakes_are_told(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    filled = [argument.replace("{models}", str(models)) for argument in arguments]
    assert run([*filled, "--home", str(tmp_path)]) == MISTAKE
    assert message in capsys.readouterr().err


def test_a_table_of_choices_is_asked_as_it_is_learned(tmp_path: Path) -> None:
    question = question_of_class(MODELS["multiple_choice"])
    rows = [
        {"text": "a", "choices": {"text": ["b", "c"], "label": ["A", "B"]}},
        {"text": "d", "choices": ["e", "f"]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert asked_of(read_table(str(path)), {}, question).columns["choices"] == [
        ["b", "c"], ["e", "f"],
    ]  # fmt: skip
    written = json.dumps([{"label": "A", "text": "b"}, {"label": "B", "text": "c"}])
    for table in (written, str(rows[0]["choices"])):
        write_table(tmp_path / "a.csv", {"text": ["a"], "choices": [table]})
        asked = asked_of(read_table(str(tmp_path / "a.csv")), {}, question)
        assert asked.columns["choices"] == [["b", "c"]]
    path.write_text(json.dumps({"text": "a", "choices": "b c"}) + "\n")
    with pytest.raises(UserError, match="choices must hold lists of texts, found 'b c'"):
        asked_of(read_table(str(path)), {}, question)


def test_bytes_of_a_shell_that_are_no_utf_8_are_read_as_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    save_model(tmp_path / "m", build_model("sequence_classification", CONFIG, num_labels=2))
    WordPieceTokenizer(TOKENS).save(tmp_path / "m")
    assert run(["predict", "a caf\udce9", "--model", str(tmp_path / "m"), "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["text"] == "a café"
