"""Questions of a table and of the command line are asked of a model, and answered row by row."""

import io
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.inference.tables import answer_table, question_of_class
from bert_core.model.catalogue import MODELS, build_model
from bert_core.model.task_models import SentenceEncoder
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, MISTAKE, run
from tests.pipelines.tasks.letters import CONFIG, TOKENS

PAIRS = question_of_class(MODELS["regression"])
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
    ("head", "arguments", "expected"),
    [
        ("sequence_classification", ["a b"], {"label", "probability"}),
        ("multi_label_classification", ["a b", "c"], {"labels"}),
        ("token_classification", ["ab c"], {"words", "tags"}),
        ("regression", ["a b"], {"value"}),
        ("multiple_choice", ["a", "b", "c"], {"choice", "probability"}),
        ("span_prediction", ["a", "b c d"], {"answer", "begin", "null_lead"}),
        ("encoder", ["a b"], {"embedding"}),
    ],
)
def test_every_head_answers_on_the_command_line(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    head: str,
    arguments: list[str],
    expected: set[str],
) -> None:
    named = ["--model", str(models / head), "--home", str(tmp_path)]
    assert run(["predict", *arguments, *named]) == DONE
    answered = capsys.readouterr().out
    assert answered.strip()
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


def test_cells_of_csv_hold_no_lists_and_empty_ones_are_nothing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    chooser = ["--model", str(models / "multiple_choice"), "--home", str(tmp_path)]
    table.write_text('text,choices\na,"[""b"", ""c""]"\n')
    assert run(["predict", "--file", str(table), *chooser]) == MISTAKE
    assert "choices must be a list of texts, found" in capsys.readouterr().err
    table.write_text("text,other\na,1\n,2\n")
    rater = ["--model", str(models / "regression"), "--home", str(tmp_path)]
    assert run(["predict", "--file", str(table), *rater]) == MISTAKE
    assert "row 1 of what is asked, counted from 0, has no text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["predict", "a", "b", "--model", "{models}/multiple_choice"],
            "text and choices (two or more)",
        ),
        (["predict", "a", "--model", "{models}/span_prediction"], "needs question and context"),
        (["predict", "a", "--file", "a.csv"], "either texts or --file"),
        (["predict", "a", "--out", "a.pdf", "--model", "{models}/tag"], "answers are written to"),
        (["predict", "a", "--out", "{models}/a.csv", "--model", "x"], "a.csv cannot be written"),
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


def test_bytes_that_are_no_utf_8_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\na caf\xe9\n")))
    assert run(["predict"]) == MISTAKE
    assert "line 2 of standard input is not UTF-8" in capsys.readouterr().err
