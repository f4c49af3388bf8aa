"""Labelled items become a task: split without leaks, labels counted, the baseline beside them."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages import DATASET
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.dataset.items import check_inputs, validation_parts
from pipelines.stages.dataset.settings import CorpusSourceLabels, DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items, read_train_groups
from pipelines.store import ArtifactStore
from pipelines.tasks import Items, Reading
from pipelines.tasks.classification import FAMILY
from pipelines.tasks.encoding import shuffled


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    return StageContext(store=ArtifactStore(tmp_path / "store"))


def _write(path: Path, rows: list[tuple[str, str]]) -> DatasetSettings:
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows))
    return DatasetSettings(source=LabelledFile(path=str(path)))


def _rows(count: int = 200) -> list[tuple[str, str]]:
    return [
        (f"text number {index}", "rare" if index % 4 == 0 else "common") for index in range(count)
    ]


def test_both_splits_hold_every_text_once(tmp_path: Path, context: StageContext) -> None:
    dataset = build_dataset(_write(tmp_path / "a.tsv", _rows()), None, context)
    train, heldout = read_items(dataset, "train"), read_items(dataset, "heldout")
    texts = [item["text"] for item in (*train.rows, *heldout.rows)]
    assert sorted(texts) == sorted(text for text, _ in _rows())
    assert 20 <= len(heldout.rows) <= 60
    assert dataset.statistics["labels"] == ["common", "rare"]
    share = np.mean([item["label"] == "common" for item in heldout.rows])
    assert dataset.statistics["baseline/accuracy"] == pytest.approx(share)


def test_the_same_bytes_elsewhere_are_the_same_task(tmp_path: Path, context: StageContext) -> None:
    first = build_dataset(_write(tmp_path / "a.tsv", _rows()), None, context)
    second = build_dataset(_write(tmp_path / "b.tsv", _rows()), None, context)
    changed = build_dataset(_write(tmp_path / "c.tsv", _rows(201)), None, context)
    assert second.reused
    assert first.fingerprint == second.fingerprint != changed.fingerprint


def test_another_name_that_says_how_quotes_are_read_is_another_dataset(
    tmp_path: Path, context: StageContext
) -> None:
    texts = [f'"text number {n}"' if n % 7 == 0 else f"text number {n}" for n in range(40)]
    datasets = []
    for name in ("a.txt", "a.csv"):
        _write(tmp_path / name, [(text, "ab"[n % 2]) for n, text in enumerate(texts)])
        source = LabelledFile(path=str(tmp_path / name), delimiter="\t")
        datasets.append(build_dataset(DatasetSettings(source=source), None, context))
    assert datasets[0].fingerprint != datasets[1].fingerprint


def test_documents_of_too_few_words_are_left_out_and_counted(
    tmp_path: Path, context: StageContext
) -> None:
    sources = []
    for name in ("letters", "reports"):
        blocks = [f"The {name} say number {number} of twelve things." for number in range(12)]
        blocks += [f"Only {name}, number {number}." for number in range(3)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(blocks))
        path = str(tmp_path / f"{name}.txt")
        sources.append(TextFiles(paths=(path,), layout="blank_line"))
    corpus = build_corpus(CorpusSettings(sources=tuple(sources)), context)
    dataset = build_dataset(DatasetSettings(source=CorpusSourceLabels()), corpus, context)
    assert dataset.statistics["labels"] == ["letters", "reports"]
    assert dataset.statistics["dropped"] == {"too few words": 6}
    assert sum(dataset.statistics["items"].values()) == 24


def test_every_text_comes_once_an_epoch_in_another_order() -> None:
    steps = [shuffled(10, seed=3, step=step, global_batch_size=4) for step in range(5)]
    stream = np.concatenate(steps)
    first, second = stream[:10].tolist(), stream[10:].tolist()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert shuffled(10, seed=3, step=4, global_batch_size=4).tolist() == steps[4].tolist()


def test_long_texts_are_cut_and_counted() -> None:
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    rows = [{"text": text, "second_text": None, "label": "x"} for text in ("a " * 50, "a")]
    texts = FAMILY.examples(Items(rows, ("x",)), tokenizer, Reading(max_tokens=8))
    assert texts.encoded.num_truncated == 1
    assert texts.batch(np.array([0, 1])).tokens.lengths == (8, 3)


def test_ones_own_heldout_file_is_taken_as_it_is(tmp_path: Path, context: StageContext) -> None:
    settings = _write(tmp_path / "train.tsv", _rows(40))
    _write(tmp_path / "dev.tsv", [("text number 0", "rare"), ("another", "common")] * 2)
    source = settings.source.model_copy(update={"heldout_path": str(tmp_path / "dev.tsv")})
    dataset = build_dataset(DatasetSettings(source=source), None, context)
    assert dataset.statistics["items"] == {"train": 40, "heldout": 4}
    assert dataset.statistics["heldout_also_in_train"] == 2
    assert DATASET.headline(dataset.statistics).endswith("; 2 held-out ones are trained on as well")
    assert dataset.fingerprint != build_dataset(settings, None, context).fingerprint
    (tmp_path / "dev.tsv").write_text("text\tsecond_text\tlabel\none\ttwo\trare\n")
    with pytest.raises(UserError, match=r"dev.tsv holds pairs of texts and .* single ones"):
        build_dataset(DatasetSettings(source=source), None, context)
    _write(tmp_path / "dev.tsv", [("another", "unknown"), ("one more", "rare")] * 2)
    with pytest.raises(UserError, match=r"\[.unknown.\] are only among .* add training texts with"):
        build_dataset(DatasetSettings(source=source), None, context)
    _write(tmp_path / "dev.tsv", _rows(40)[20:0:-1])
    with pytest.raises(UserError, match=r"every item of .*dev.tsv is trained on; leave it out"):
        build_dataset(DatasetSettings(source=source), None, context)


def test_a_group_is_never_divided(tmp_path: Path, context: StageContext) -> None:
    path = tmp_path / "a.csv"
    lines = [f"text {n},{'ab'[n % 2]},author {n % 10}" for n in range(200)]
    path.write_text("\n".join(["text,label,author", *lines]))
    source = LabelledFile(path=str(path), group_column="author", heldout_fraction=0.4)
    dataset = build_dataset(DatasetSettings(source=source), None, context)
    authors = [
        {int(item["text"].split()[1]) % 10 for item in read_items(dataset, split).rows}
        for split in ("train", "heldout")
    ]
    assert not authors[0] & authors[1]
    assert dataset.statistics["items"]["heldout"] % 20 == 0
    # The groups of what is trained on are kept as numbers, their names nowhere.
    groups, rows = read_train_groups(dataset), read_items(dataset, "train").rows
    assert groups is not None
    number_of: dict[int, int] = {}
    for item, group in zip(rows, groups, strict=True):
        assert number_of.setdefault(int(item["text"].split()[1]) % 10, group) == group
    assert set(number_of.values()) == set(range(len(authors[0])))
    assert not any(b"author 3" in path.read_bytes() for path in dataset.local_folder().iterdir()
                   if path.name != "manifest.json")  # fmt: skip
    source = source.model_copy(update={"group_column": ""})
    assert read_train_groups(build_dataset(DatasetSettings(source=source), None, context)) is None


def test_a_text_of_several_groups_is_not_held_out_where_it_is_learned(
    tmp_path: Path, context: StageContext, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.csv"
    texts = [f"Text {n},{'ab'[n % 2]},author {n // 3}" for n in range(300)]
    greetings = [f"ok,a,author {n}" for n in range(100)]  # of every author
    path.write_text("\n".join(["text,label,author", *texts, *greetings]))
    source = LabelledFile(path=str(path), group_column="author", heldout_fraction=0.2)
    dataset = build_dataset(DatasetSettings(source=source), None, context)
    assert dataset.statistics["heldout_also_in_train"] == 0
    heldout = [item["text"] for item in read_items(dataset, "heldout").rows]
    assert "ok" not in heldout and 30 < len(heldout) < 100
    assert "held-out items are left out: their texts are trained on" in caplog.text
    learned, validated = validation_parts(
        read_items(dataset, "train"), FAMILY, 30, 0, read_train_groups(dataset)
    )
    texts = [{item["text"] for item in part.rows} for part in (learned, validated)]
    assert texts[1] and not texts[0] & texts[1]
    # Where nearly every text is of several authors, little would be left.
    lines = [f"Text {n // 3},{'ab'[n // 3 % 2]},author {n}" for n in range(300)]
    path.write_text("\n".join(["text,label,author", *lines]))
    with pytest.raises(
        UserError, match=r"items to hold out have texts that .* or leave group_column"
    ):
        build_dataset(DatasetSettings(source=source), None, context)


def test_a_question_that_many_groups_ask_is_held_out_with_their_own_second_text(
    tmp_path: Path, context: StageContext
) -> None:
    path = tmp_path / "a.csv"
    lines = [
        f"{aspect},review {number},{'ab'[(number + place) % 2]},{number}"
        for number in range(100)
        for place, aspect in enumerate(("service", "food", "price"))
    ]
    path.write_text("\n".join(["text,second_text,label,review", *lines]))
    source = LabelledFile(path=str(path), group_column="review", heldout_fraction=0.2)
    dataset = build_dataset(DatasetSettings(source=source), None, context)
    train, heldout = (read_items(dataset, split) for split in ("train", "heldout"))
    assert dataset.statistics["heldout_also_in_train"] == 0
    assert len(heldout.rows) % 3 == 0 and len(train.rows) + len(heldout.rows) == 300
    learned, validated = validation_parts(train, FAMILY, 30, 0, read_train_groups(dataset))
    assert len(validated.rows) >= 30 and len(learned.rows) + len(validated.rows) == len(train.rows)
    reviews = [{item["second_text"] for item in part.rows} for part in (learned, validated)]
    assert not reviews[0] & reviews[1]


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [("#winning!", True), ("#NAME?", False), ("#ССЫЛКА!", False), ("#победа!", True)],
)
def test_a_hashtag_is_no_fault_of_a_spreadsheet(text: str, is_taken: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "\n".join(["text,label", *(f"text {n},{'ab'[n % 2]}" for n in range(20)), f"{text},a"])
    )
    settings = DatasetSettings(source=LabelledFile(path=str(path)))
    if is_taken:
        check_inputs(settings)
        return
    with pytest.raises(UserError, match=r"values in its cells, found .* in line 22"):
        check_inputs(settings)


def test_items_and_rows_that_cannot_be_read_are_refused_with_their_line(
    tmp_path: Path, context: StageContext
) -> None:
    path = tmp_path / "a.csv"
    good = [f"text {n},{n % 5}" for n in range(40)]
    source = LabelledFile(path=str(path))
    for family, lines, message in (
        ("regression", [*good[:10], "odd,many", *good[10:]],
         r"have a number as its label, found 'many' in line 12; correct or remove it"),
        ("classification", [*good[:1], "bad,film,0", *good[1:]], "line 3 of .*has 3 columns"),
        ("classification", ['"never closed', *good],
         r"row that begins in line 2 of .*unexpected end of data"),
    ):  # fmt: skip
        path.write_text("\n".join(["text,label", *lines]))
        with pytest.raises(UserError, match=message):
            build_dataset(DatasetSettings(family=family, source=source), None, context)
    path.write_text("\n".join(["text,label", *good, good[3]]))
    dataset = build_dataset(DatasetSettings(source=source), None, context)
    assert dataset.statistics["duplicates"] == 1


def test_texts_that_differ_in_case_or_blanks_and_turned_pairs_stand_on_one_side(
    tmp_path: Path, context: StageContext
) -> None:
    path = tmp_path / "a.csv"
    texts = [f"text {n}" for n in range(60)]
    rows = [*texts, *(text.upper() for text in texts), *(f" {t.replace(' ', '  ')}" for t in texts)]
    path.write_text("text,label\n" + "".join(f"{t},{'ab'[n % 2]}\n" for n, t in enumerate(rows)))
    dataset = build_dataset(DatasetSettings(source=LabelledFile(path=str(path))), None, context)
    assert dataset.statistics["heldout_also_in_train"] == 0
    assert dataset.statistics["duplicates"] == 120
    assert dataset.statistics["items"]["heldout"] % 3 == 0
    # Composed and not, as two keyboards write the same.
    spelled = [f"क़ café {n}" for n in range(60)]
    spelled += [unicodedata.normalize(form, text) for form in ("NFC", "NFD") for text in spelled]
    lines = "".join(f"{t},{'ab'[n % 2]}\n" for n, t in enumerate(spelled))
    path.write_text(f"text,label\n{lines}", encoding="utf-8")
    dataset = build_dataset(DatasetSettings(source=LabelledFile(path=str(path))), None, context)
    assert dataset.statistics["items"]["heldout"] % 3 == 0
    pairs = [(f"one {n}", f"other {n}") for n in range(60)]
    pairs += [(second.upper(), first) for first, second in pairs]
    path.write_text(
        "text,second_text,label\n"
        + "".join(f"{a},{b},{'xy'[n % 2]}\n" for n, (a, b) in enumerate(pairs))
    )
    dataset = build_dataset(DatasetSettings(source=LabelledFile(path=str(path))), None, context)
    assert dataset.statistics["heldout_also_in_train"] == 0
    assert dataset.statistics["items"]["heldout"] % 2 == 0
    both = LabelledFile(path=str(path), heldout_path=f"{tmp_path}/../{tmp_path.name}/{path.name}")
    with pytest.raises(UserError, match=r"every item of .* is trained on; leave it out, and"):
        build_dataset(DatasetSettings(source=both), None, context)


@pytest.mark.parametrize("family", ["classification", "multi-label"])
def test_a_class_of_one_item_is_trained_on(
    family: str, tmp_path: Path, context: StageContext
) -> None:
    path, name = tmp_path / "a.csv", "labels" if family == "multi-label" else "label"
    labels = [f"rare{n}" if n < 30 else "common" for n in range(400)]
    path.write_text(f"text,{name}\n" + "".join(f"t {n},{each}\n" for n, each in enumerate(labels)))
    settings = DatasetSettings(family=family, source=LabelledFile(path=str(path)))
    dataset = build_dataset(settings, None, context)
    assert len(dataset.statistics["labels"]) == 31
    assert len(read_items(dataset, "heldout").rows) > 40
