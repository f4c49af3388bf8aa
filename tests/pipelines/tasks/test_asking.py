"""What the command line or a file asks of a model, and what is answered."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.inference.tables import answer_table
from bert_core.model.catalogue import build_model
from bert_core.model.task_models import SentenceEncoder
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, MISTAKE, run
from pipelines.tasks import Items, Reading, family
from tests.pipelines.tasks.letters import CONFIG, TOKENS

SENTENCES = [["ab", "c,d", "e"], ["f\u200b", "g"]]
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


def test_the_most_probable_classes_stand_in_their_order(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--model", str(models / "sequence_classification"), "--home", str(tmp_path)]
    assert run(["predict", "a b", "--top", "9", "--json", *named]) == DONE
    row = json.loads(capsys.readouterr().out)
    assert sorted(row["labels"]) == ["bad", "good"]
    assert row["labels"][0] == row["label"]
    assert row["probabilities"][0] == row["probability"] >= row["probabilities"][1]
    assert sum(row["probabilities"]) == pytest.approx(1)
    shown = [f"{n} {p:.1%}" for n, p in zip(row["labels"], row["probabilities"], strict=True)]
    assert run(["predict", "a b", "--top", "2", *named]) == DONE
    assert capsys.readouterr().out == f"{', '.join(shown)}  a b\n"
    assert run(["predict", "a b", "--top", "2", "--min-confidence", "0.99", *named]) == DONE
    assert capsys.readouterr().out == f"- ({', '.join(shown)}?)  a b\n"
    assert run(["predict", "a b", "--top", "1", "--json", *named]) == DONE
    assert "labels" not in json.loads(capsys.readouterr().out)


def test_a_file_is_answered_row_by_row_and_its_columns_come_out_as_they_went_in(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": 7, "review": "a b", "label": "gold", "predicted_label": "x", "text": "mine"},
        {"id": 8, "review": "c", "label": "other", "predicted_label": "y", "text": ""},
    ]
    asked, model = tmp_path / "in.jsonl", models / "sequence_classification"
    asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["--model", str(model), "--home", str(tmp_path), "--json"]
    assert run(["predict", "--file", str(asked), "--text-column", "review", *named]) == DONE
    printed = capsys.readouterr()
    assert f"model: {model}" in printed.err
    for row, line in zip(rows, printed.out.splitlines(), strict=True):
        answered = json.loads(line)
        assert {name: answered[name] for name in row} == row
        assert set(answered) - set(row) == {"predicted_predicted_label", "probability"}
    pq.write_table(pa.table({"s1": ["a", "b c"], "s2": ["x", "y z"]}), tmp_path / "in.parquet")
    named = ["--model", str(models / "regression"), "--home", str(tmp_path), "--json"]
    columns = ["--text-column", "s1", "--second-text-column", "s2"]
    assert run(["predict", "--file", str(tmp_path / "in.parquet"), *columns, *named]) == DONE
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["s1"], row["s2"]) for row in answers] == [("a", "x"), ("b c", "y z")]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_words_that_are_split_already_are_tagged_as_they_were_learned(
    models: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = models / "token_classification"
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    items = Items([{"words": words, "tags": ["O"] * len(words)} for words in SENTENCES])
    learned = family("tagging").answers(model, tokenizer, items, Reading(32)).values
    gold = [["O"] * len(words) for words in SENTENCES]
    table = pa.table({"text": ["x", "y"], "words": SENTENCES, "tags": gold})
    path = tmp_path / f"in.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    asked = ["predict", "--file", str(path), "--home", str(tmp_path), "--json"]
    assert run([*asked, "--model", str(folder)]) == DONE
    answered = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["predicted_tags"] for row in answered] == learned
    assert [row["words"] for row in answered] == SENTENCES
    assert [row["tags"] for row in answered] == gold
    alone = answer_table(model, tokenizer, {"text": ["ab e", None], "words": [None, SENTENCES[1]]})
    assert alone["words"] == [["ab", "e"], SENTENCES[1]]
    assert alone["tags"][1] == learned[1]


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
        (["predict", "--batch", "a.csv", "--top", "2"], "--json and --top"),
        (["predict", "--batch", "a.csv", "--model", "0" * 32], "is a fingerprint; name the regist"),
        (["predict", "--file", "s3://no/a.csv"], "is a URL; answer it with --batch"),
        (["predict", "a", "--top", "2", "--model", "{models}/regression"], "no one class a row"),
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
