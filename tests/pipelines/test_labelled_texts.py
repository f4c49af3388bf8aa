"""Labelled texts become a task: split without leaks, labels counted, the baseline beside them."""

from pathlib import Path

import numpy as np
import pytest

from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import ArtifactStore
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.stages.corpus.settings import CorpusSettings, PlainText
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.finetuning.encoding import EncodedTexts
from pipelines.stages.labelled.settings import (
    CorpusSourceLabels,
    LabelledFile,
    LabelledSettings,
    NoLabels,
)
from pipelines.stages.labelled.stage import LabelledTexts, build_labelled, read_split
from pipelines.tasks.classification import figures_of, report_on


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    return StageContext(store=ArtifactStore(tmp_path / "store"))


def _write(path: Path, rows: list[tuple[str, str]]) -> LabelledSettings:
    path.write_text("".join(f"{label}\t{text}\n" for text, label in rows))
    return LabelledSettings(source=LabelledFile(path=str(path)))


def _rows(count: int = 200) -> list[tuple[str, str]]:
    return [
        (f"text number {index}", "rare" if index % 4 == 0 else "common") for index in range(count)
    ]


def test_both_splits_hold_every_text_once(tmp_path: Path, context: StageContext) -> None:
    labelled = build_labelled(_write(tmp_path / "a.tsv", _rows()), None, context)
    train, heldout = read_split(labelled, "train"), read_split(labelled, "heldout")
    assert sorted(train.texts + heldout.texts) == sorted(text for text, _ in _rows())
    assert 20 <= len(heldout.texts) <= 60
    assert labelled.statistics["labels"] == ["common", "rare"]
    share = np.mean([label == 0 for label in heldout.labels])
    assert labelled.statistics["baseline/accuracy"] == pytest.approx(share)


def test_equal_texts_never_stand_on_both_sides(tmp_path: Path, context: StageContext) -> None:
    labelled = build_labelled(_write(tmp_path / "a.tsv", _rows(100) * 3), None, context)
    train, heldout = (set(read_split(labelled, split).texts) for split in ("train", "heldout"))
    assert not train & heldout


def test_the_same_bytes_elsewhere_are_the_same_task(tmp_path: Path, context: StageContext) -> None:
    first = build_labelled(_write(tmp_path / "a.tsv", _rows()), None, context)
    second = build_labelled(_write(tmp_path / "b.tsv", _rows()), None, context)
    changed = build_labelled(_write(tmp_path / "c.tsv", _rows(201)), None, context)
    assert second.reused
    assert first.fingerprint == second.fingerprint != changed.fingerprint


def test_a_corpus_gives_its_sources_as_labels_and_keeps_its_own_split(
    small_corpus, context: StageContext
) -> None:
    settings = LabelledSettings(source=CorpusSourceLabels(max_train_documents=10, min_words=1))
    with pytest.raises(UserError, match=r"a label must come with several texts"):
        build_labelled(settings, small_corpus, context)  # every file is a source of its own


def test_documents_of_too_few_words_are_left_out_and_counted(
    tmp_path: Path, context: StageContext
) -> None:
    sources = []
    for name in ("letters", "reports"):
        blocks = [f"The {name} say number {number} of twelve things." for number in range(12)]
        blocks += [f"Only {name}, number {number}." for number in range(3)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(blocks))
        path = str(tmp_path / f"{name}.txt")
        sources.append(PlainText(paths=(path,), layout="blank_line"))
    corpus = build_corpus(CorpusSettings(sources=tuple(sources)), context)
    labelled = build_labelled(LabelledSettings(source=CorpusSourceLabels()), corpus, context)
    assert labelled.statistics["labels"] == ["letters", "reports"]
    assert labelled.statistics["dropped"] == {"too few words": 6}
    assert sum(labelled.statistics["texts"].values()) == 24


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a text", "same")] * 20, "at least two labels to tell apart, found"),
        ([(f"t{index}", f"label {index}") for index in range(20)], "several texts to learn from"),
    ],
)
def test_labels_that_teach_nothing_are_refused(
    tmp_path: Path, context: StageContext, rows: list[tuple[str, str]], message: str
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows))
    with pytest.raises(UserError, match=message):
        build_labelled(LabelledSettings(source=LabelledFile(path=str(path))), None, context)


def test_no_task_is_not_built(context: StageContext) -> None:
    with pytest.raises(UserError, match="found a source of kind 'none'"):
        build_labelled(LabelledSettings(source=NoLabels()), None, context)


def test_every_text_comes_once_an_epoch_in_another_order() -> None:
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    texts = EncodedTexts(LabelledTexts(["a b"] * 10, [0] * 10), tokenizer, max_tokens=8)
    steps = [texts.shuffled(seed=3, step=step, examples_per_step=4) for step in range(5)]
    stream = np.concatenate(steps)
    first, second = stream[:10].tolist(), stream[10:].tolist()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert texts.shuffled(seed=3, step=4, examples_per_step=4).tolist() == steps[4].tolist()


def test_long_texts_are_cut_and_counted() -> None:
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    labelled = LabelledTexts(["a " * 50, "a"], [1, 0])
    texts = EncodedTexts(labelled, tokenizer, max_tokens=8)
    assert texts.num_truncated == 1
    assert texts.batch(np.array([0, 1])).tokens.lengths == (8, 3)


def test_figures_and_report_of_answers() -> None:
    expected, answered = ["a", "a", "a", "b"], ["a", "a", "b", "b"]
    assert figures_of(answered, expected) == {
        "eval/accuracy": 0.75,
        "eval/macro_f1": pytest.approx((0.8 + 2 / 3) / 2),
    }
    report = report_on(answered, expected)
    assert report["confusion"] == [[2, 1], [0, 1]]
    assert report["by_label"][1] == {
        "label": "b", "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "texts": 1,
    }  # fmt: skip
