"""What a file or standard input asks, and that its answers lose nothing of it."""

import io
import json
from pathlib import Path

import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.inference.tables import answer_table
from bert_core.model.catalogue import build_model
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, run
from pipelines.predict.tables import write_table
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
    assert answer_table(model, tokenizer, {"words": SENTENCES})["tags"] == learned
    alone = answer_table(model, tokenizer, {"text": ["ab e", None], "words": [None, SENTENCES[1]]})
    assert alone["words"] == [["ab", "e"], SENTENCES[1]]
    assert alone["tags"][1] == learned[1]


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


def test_who_answered_is_said_beside_the_answers(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("sentence,id\na b,1\n")
    model = models / "sequence_classification"
    asked = ["--file", str(tmp_path / "a.csv"), "--text-column", "sentence", "--json"]
    assert run(["predict", *asked, "--model", str(model), "--home", str(tmp_path)]) == DONE
    said = capsys.readouterr()
    assert set(json.loads(said.out)) == {"sentence", "id", "label", "probability"}
    assert f"model: {model}" in said.err
