"""`evaluate` refuses labels and numbers of which a score would say nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_core.config import EncoderConfig
from bert_core.training.state import save_model
from bert_core.vocabulary import WordPieceTokenizer
from flows.cli.app import DONE, MISTAKE, run
from pipelines.tasks import family
from tests.pipelines.tasks.letters import LETTERS

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def model_folder(folder: Path, name: str, labels: tuple[str, ...] = ()) -> Path:
    """A model of the family with random weights."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=len(TOKENS), hidden_size=32, num_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16,
    )  # fmt: skip
    save_model(folder, family(name).build_model(config, labels).eval())
    WordPieceTokenizer(TOKENS).save(folder)
    return folder


def evaluated(folder: Path, rows: list[dict[str, Any]], *options: str) -> int:
    """What the command ends with, asked of the model in `folder`."""
    path = folder.parent / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return run(["evaluate", "--model", str(folder), "--labels", str(path), "--json", *options])


def test_pairs_need_similarities_of_one_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model", "sentence_embedding")
    texts = [{"text": "a b", "second_text": second} for second in "cde"]
    scored = [{**pair, "score": str(place)} for place, pair in enumerate(texts)]
    assert evaluated(model, scored) == MISTAKE
    assert "are all equally similar; name the column" in capsys.readouterr().err
    assert evaluated(model, scored, "--label-column", "score") == DONE
    capsys.readouterr()
    labels = ["4.5", "entailment", "1"]
    mixed = [{**pair, "label": label} for pair, label in zip(texts, labels, strict=True)]
    assert evaluated(model, mixed) == MISTAKE
    error = capsys.readouterr().err
    assert "some pairs to evaluate on have numbers and some have classes" in error
    assert "--label-column" in error


def test_numbers_that_are_all_the_same_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model", "regression")
    assert evaluated(model, [{"text": text, "label": 5} for text in "abc"]) == MISTAKE
    assert "have the same number, 5; name the column" in capsys.readouterr().err


def test_tags_of_unknown_types_are_refused_and_other_schemes_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entities = model_folder(tmp_path / "entities", "tagging", ("B-PER", "I-PER", "O"))
    words = ["a", "b", "c"]
    assert evaluated(entities, [{"words": words, "tags": ["B-PERSON", "I-PERSON", "O"]}]) == MISTAKE
    error = capsys.readouterr().err
    assert "was not trained on the labels B-PERSON, I-PERSON of" in error
    assert "it knows B-PER, I-PER, O" in error
    assert evaluated(entities, [{"words": words, "tags": ["S-PER", "O", "O"]}]) == DONE
    assert evaluated(entities, [{"words": words, "tags": ["NOUN", "O", "O"]}]) == MISTAKE
    assert "was not trained on the labels NOUN of" in capsys.readouterr().err
    parts = model_folder(tmp_path / "parts", "tagging", ("NOUN", "VERB"))
    assert evaluated(parts, [{"words": words, "tags": ["NOUN", "ADP", "VERB"]}]) == MISTAKE
    assert "was not trained on the labels ADP of" in capsys.readouterr().err


def test_choices_counted_from_one_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model", "multiple_choice")
    rows = [{"text": "a", "choices": ["b", "c", "d"], "label": 1 + n % 2} for n in range(30)]
    assert evaluated(model, rows) == MISTAKE
    assert "0, is the answer to none of 30 questions" in capsys.readouterr().err


def test_questions_with_different_numbers_of_choices_have_probabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model", "multiple_choice")
    rows = [{"text": "a", "choices": ["b", "c", "d"][:n], "label": n - 2} for n in (2, 3, 2)]
    answers = []
    for asked in (rows, *([row] for row in rows)):
        assert evaluated(model, asked, "--min-confidence", "0.4") == DONE
        answers.append(json.loads(capsys.readouterr().out))
    together, *alone = answers
    assert together["alone"]["items"] == 3
    assert together["alone"]["answered"] == sum(each["alone"]["answered"] for each in alone)
    for name in ("eval/accuracy", "confidence/log_loss"):
        assert together[name] == pytest.approx(sum(each[name] for each in alone) / 3)


def test_a_wrong_label_that_comes_three_times_is_found_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random, words = np.random.default_rng(0), {"food": "soup salt oven", "ships": "mast sail hull"}
    model = model_folder(tmp_path / "model", "classification", tuple(words))
    rows, wrong = [], set()
    for place in range(200):
        label, other = ("food", "ships") if place % 2 else ("ships", "food")
        text = f"{' '.join(random.choice(words[label].split(), 3))} n{place}"
        if place % 20:
            rows.append({"text": text, "label": label})
        else:
            copies = (text, text.upper(), text.replace(" ", "  "))
            rows += [{"text": copy, "label": other} for copy in copies]
            wrong |= {*copies}
    monkeypatch.chdir(tmp_path)
    assert evaluated(model, rows, "--suspects", "30") == DONE
    suspects = json.loads(capsys.readouterr().out)["suspects"]
    assert {row["text"] for row in suspects} == wrong and len(suspects) == 30
