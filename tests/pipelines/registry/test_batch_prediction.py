"""Answers to whole files: every row once, the same bytes after a kill, by one version."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from bert_core.inference.tables import Question, question_of
from bert_core.inference.words import places_of_words
from bert_core.model.catalogue import MODELS
from pipelines.cluster import connect, disconnect
from pipelines.errors import UserError
from pipelines.predict.answers import answers_to
from pipelines.predict.batch_prediction import (
    KIND,
    VERSION,
    BatchSettings,
    asked_shards,
    build_predictions,
    columns_asked,
    copy_answers,
)
from pipelines.registry.package import opened
from pipelines.registry.register import RegisteredModel, Submission, register
from pipelines.settings import RuntimeSettings
from pipelines.stage import Progress, StageContext
from pipelines.store import ArtifactStore, Built, Draft
from tests.integration.object_stores import BUCKET, s3_server
from tests.pipelines.registry.conftest import Models
from tests.pipelines.registry.test_serving import untrained

# By the version of batch answers.
WORDS = {
    9: [
        "«", "Ada", "»", ",", "@", "b", "-", "-", "(", "c_d", ")", "።", "東", "京", "、", "大",
        "阪", "「", "ア・イ", "」", "e.g", ".", "नाम", "।",
    ],
}  # fmt: skip


def texts(folder: Path, name: str, count: int, column: str = "text") -> str:
    path = folder / name
    values = [f"text {number} of {name}" for number in range(count)]
    pq.write_table(pa.table({column: values, "other": list(range(count))}), path)
    return str(path)


def own_context(models: Models, folder: Path) -> StageContext:
    return replace(models.context, store=ArtifactStore(folder / "store"))


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("part-*.parquet")}


def registered_tagger(models: Models, folder: Path) -> RegisteredModel:
    submission = Submission(
        kind="tagging", name="tagger", alias="candidate", artifact=untrained(folder, "tagging"),
        lineage={}, recipe_yaml="name: small\n",
    )  # fmt: skip
    return register(submission, models.tracker)


def test_every_row_of_every_file_is_answered_by_the_version_that_the_alias_named(
    models: Models, tmp_path: Path
) -> None:
    models.register(models.encoder(1))
    models.tracker.client().set_registered_model_alias("encoder", "champion", "1")
    paths = texts(tmp_path, "a.parquet", 25), texts(tmp_path, "b.parquet", 3)
    (tmp_path / "c.txt").write_text("a line\n\nand another\n")
    settings = BatchSettings(
        model="encoder@champion", files=(*paths, str(tmp_path / "*.txt")), rows_per_shard=10,
        out=str(tmp_path / "answers"),
    )  # fmt: skip
    made = build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert made.names() == [
        "part-00000-00000.parquet", "part-00000-00001.parquet", "part-00000-00002.parquet",
        "part-00001-00000.parquet", "part-00002-00000.parquet",
    ]  # fmt: skip
    assert made.statistics == {"rows": 30, "files": 3, "model": "encoder/1"}
    third = pq.read_table(made.local("part-00000-00002.parquet")).to_pydict()
    assert third["row"] == [20, 21, 22, 23, 24]
    assert third["text"][0] == "text 20 of a.parquet"
    assert third["model"] == ["encoder/1"] * 5
    assert len(third["embedding"][0]) == 128
    vectors = pq.read_schema(made.local("part-00000-00002.parquet")).field("embedding").type
    assert vectors == pa.list_(pa.float32())
    assert pq.read_table(made.local("part-00002-00000.parquet")).to_pydict()["row"] == [0, 2]
    answers = tmp_path / "answers" / made.fingerprint[:16]
    assert shards(answers) == shards(tmp_path / "store")
    assert pq.read_table(tmp_path / "answers").num_rows == 30

    models.register(models.encoder(2))
    assert build_predictions(settings, models.tracker, own_context(models, tmp_path)).reused
    models.tracker.client().set_registered_model_alias("encoder", "champion", "2")
    other = build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert other.statistics["model"] == "encoder/2"
    assert other.fingerprint != made.fingerprint
    assert len(list((tmp_path / "answers").iterdir())) == 2  # no versions mix


def test_any_number_of_workers_and_a_stop_between_give_the_same_bytes(
    models: Models, tmp_path: Path
) -> None:
    models.register(models.encoder(1))
    path = texts(tmp_path, "a.parquet", 45)
    settings = BatchSettings(model="encoder/1", files=(path,), rows_per_shard=10)
    one = replace(own_context(models, tmp_path / "1"), runtime=RuntimeSettings(num_workers=1))
    whole = build_predictions(settings, models.tracker, one)

    def stop(progress: Progress) -> None:
        if progress.done == 20 and progress.stage == KIND:
            raise KeyboardInterrupt

    two = replace(own_context(models, tmp_path / "2"), runtime=RuntimeSettings(num_workers=2))
    with pytest.raises(KeyboardInterrupt):
        build_predictions(settings, models.tracker, replace(two, observe=stop))
    kept = shards(tmp_path / "2")
    assert 2 <= len(kept) < 5

    told: list[Progress] = []
    resumed = build_predictions(settings, models.tracker, replace(two, observe=told.append))
    assert resumed.fingerprint == whole.fingerprint
    assert shards(tmp_path / "2") == shards(tmp_path / "1")
    assert told[-1].done == 45
    assert {progress.stage for progress in told} == {KIND}


def test_a_file_that_changes_ends_the_run_and_its_answers_are_used_by_no_later_one(
    models: Models, tmp_path: Path
) -> None:
    models.register(models.encoder(1))
    path = Path(texts(tmp_path, "a.parquet", 25))
    before, other = path.read_bytes(), Path(texts(tmp_path, "b.parquet", 25))
    settings = BatchSettings(model="encoder/1", files=(str(path),), rows_per_shard=10)
    build_predictions(settings, models.tracker, own_context(models, tmp_path / "1"))

    def replace_file(progress: Progress) -> None:
        if progress.done == 10:
            other.replace(path)

    context = own_context(models, tmp_path / "2")
    with pytest.raises(UserError, match=r"a\.parquet changed during the run; wait until nothing"):
        build_predictions(settings, models.tracker, replace(context, observe=replace_file))
    assert shards(tmp_path / "2")
    path.write_bytes(before)
    made = build_predictions(settings, models.tracker, context)
    assert not made.reused
    assert shards(tmp_path / "2") == shards(tmp_path / "1")


def test_shards_have_one_schema_whatever_their_rows_lack(models: Models, tmp_path: Path) -> None:
    models.register(models.encoder(1))
    tagger = registered_tagger(models, tmp_path)
    rows = [{"text": "a b"}, {"text": 5}, {"words": ["c", "d"]}, {"text": "e", "words": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = BatchSettings(
        model=f"tagger/{tagger.version}", files=(str(tmp_path / "a.jsonl"),), rows_per_shard=2,
        out=str(tmp_path / "answers"),
    )  # fmt: skip
    build_predictions(settings, models.tracker, own_context(models, tmp_path))
    schemas = {pq.read_schema(path) for path in (tmp_path / "answers").rglob("*.parquet")}
    assert len(schemas) == 1
    found = pq.read_table(tmp_path / "answers").to_pydict()
    assert found["text"] == ["a b", "5", None, "e"]
    assert found["words"] == [["a", "b"], ["5"], ["c", "d"], ["e"]]
    assert [len(tags) for tags in found["tags"]] == [2, 1, 2, 1]


@pytest.mark.parametrize("names", [("row", "label"), ("text", "model"), ("text", "text")])
def test_no_column_of_the_answers_replaces_another(tmp_path: Path, names: tuple[str, str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({names[0]: "a text"}))
    question = Question((names[0],), (), {names[1]: str}, example={names[0]: "a text"})
    with pytest.raises(UserError, match="the answers would have two columns"):
        columns_asked(question, BatchSettings(), [str(tmp_path / "a.jsonl")])


def test_two_users_may_copy_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard appears whole, and nothing is left of a copy that fails."""
    answers = ArtifactStore(tmp_path / "store").get_or_build(
        KIND, version=1, settings={}, inputs={}, build=written_shard
    )
    put_file, copies = LocalFileSystem.put_file, 0

    def slow_put_file(self: LocalFileSystem, *paths: str) -> None:
        nonlocal copies
        copies += 1
        put_file(self, *paths)
        if copies == 1:  # the other user's copy, between the first one's two steps
            copy_answers(answers, str(tmp_path / "out"))

    monkeypatch.setattr(LocalFileSystem, "put_file", slow_put_file)
    copy_answers(answers, str(tmp_path / "out"))
    assert copies == 2
    assert shards(tmp_path / "out") == shards(tmp_path / "store")

    def full(*_: str) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(LocalFileSystem, "mv", full)
    with pytest.raises(UserError, match=r"answers cannot be copied to .*no space left"):
        copy_answers(answers, str(tmp_path / "full"))
    assert [path for path in (tmp_path / "full").rglob("*") if path.is_file()] == []


def written_shard(draft: Draft) -> Built:
    with draft.file("part-00000-00000.parquet") as target:
        target.path.write_bytes(b"answers")
    return Built(["part-00000-00000.parquet"], {})


def test_the_words_of_a_text_are_those_that_the_version_stands_for() -> None:
    """Answers of taggers have a tag for each word: of other words they must not be found again."""
    text = "«Ada», @b -- (c_d)። 東京、大阪「ア・イ」 e.g. नाम।"
    words = [text[begin:end] for begin, end in places_of_words(text)]
    assert words == WORDS.get(VERSION), (
        f"{text!r} has other words than version {VERSION} of batch answers stands for: where the "
        f"change is meant, raise the version and write the new words into WORDS: {words!r}"
    )


def test_a_folder_holds_tables_notes_of_their_writer_and_empty_parts(
    models: Models, tmp_path: Path
) -> None:
    """Each file is answered once; an empty context has no answer, and an empty part no row."""
    models.register(models.encoder(1))
    tagger = registered_tagger(models, tmp_path)
    asked = tmp_path / "asked"
    asked.mkdir()
    (asked / "part-0.jsonl").write_text('{"text": "a b"}\n')
    (asked / "part-1.jsonl").write_text("")
    (asked / "_SUCCESS").write_text("")
    (asked / "_committed_1").write_text('{"added": ["part-0.jsonl"]}\n')
    (asked / "_own.jsonl").write_text('{"text": "c d"}\n')
    files = (str(asked), str(asked / "part-0.jsonl"))
    settings = BatchSettings(model=f"tagger/{tagger.version}", files=files)
    predictions = build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert (predictions.statistics["rows"], predictions.statistics["files"]) == (2, 3)
    (asked / "LICENSE").write_text("some text\n")
    with pytest.raises(UserError, match=r"LICENSE has no suffix that says how to read it"):
        build_predictions(settings, models.tracker, own_context(models, tmp_path))


def test_an_empty_context_is_asked(tmp_path: Path) -> None:
    rows = [{"question": "who?", "context": ""}, {"question": "who?", "context": "Ada"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = opened(untrained(tmp_path, "question_answering").local_folder())
    (shard,) = asked_shards(str(path), BatchSettings(), model)
    assert shard.columns["context"] == ["", "Ada"]
    assert len(answers_to(*model, shard.columns)["answer"]) == 2


def test_pairs_and_texts_are_not_answered_together(tmp_path: Path) -> None:
    for name, row in (("a", {"text": "a", "second_text": "b"}), ("b", {"text": "c"})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    paths = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    question = question_of(MODELS["sentence_embedding"])
    assert columns_asked(question, BatchSettings(), paths[:1]) == ["text", "second_text"]
    with pytest.raises(UserError, match=r"have a second text and others have none \(.*b.jsonl\)"):
        columns_asked(question, BatchSettings(), paths)


@pytest.mark.slow  # Ray starts twice
def test_files_and_answers_may_lie_in_an_object_store(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.register(models.encoder(1))
    local = texts(tmp_path, "a.parquet", 12)
    with s3_server(monkeypatch), ray_of_its_own():
        store = ArtifactStore(f"s3://{BUCKET}/store")
        store.filesystem.put_file(local, f"{BUCKET}/texts/a.parquet")
        settings = BatchSettings(
            model="encoder/1", files=(f"s3://{BUCKET}/texts/*.parquet",), rows_per_shard=10,
            out=f"s3://{BUCKET}/answers",
        )  # fmt: skip
        made = build_predictions(settings, models.tracker, replace(models.context, store=store))
        store.filesystem.invalidate_cache()
        folder = f"{BUCKET}/answers/{made.fingerprint[:16]}"
        found = store.filesystem.ls(folder, detail=False)
        assert sorted(path.rpartition("/")[2] for path in found) == made.names()
        assert made.statistics["rows"] == 12
    monkeypatch.undo()
    connect()  # the session's, for the tests that follow


@contextmanager
def ray_of_its_own() -> Iterator[None]:
    """One whose processes have the environment of now."""
    disconnect()
    try:
        yield
    finally:
        disconnect()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"files": ()}, "needs files to answer"),
        ({"files": ("nowhere/*.parquet",)}, "matches no file"),
        ({"text_column": "review"}, "has no column 'review'"),
        ({"files": ("{here}",), "out": "{here}/answers"}, "would be asked at the next run"),
        ({"files": ("{here}/**",), "out": "{here}/answers"}, "would be asked at the next run"),
        ({"files": ("{here}/*/*.csv", "{here}/*/*t"), "out": "{here}"}, "asked at the next run"),
        ({"second_text_column": "b"}, "this model reads one text"),
        ({"files": ("{here}/gap.csv",)}, "row 1 of .*, counted from 0, has no text; fill it"),
        (
            {"files": ("{here}/list.jsonl",)},
            "row 1 of .*, counted from 0: text must be a text, found",
        ),
        ({"out": "no-such-scheme://bucket/x"}, "answers cannot be copied to no-such-scheme://"),
        ({"model": "nobody@champion"}, "no model 'nobody' with the alias"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(
    models: Models, tmp_path: Path, settings: dict, sentence: str
) -> None:
    models.register(models.encoder(1))
    usual = {"model": "encoder/1", "files": (texts(tmp_path, "a.parquet", 2),)}
    (tmp_path / "gap.csv").write_text("text,other\none,1\n,2\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.csv").write_text("text\none\n")
    texts(tmp_path / "below", "a.parquet", 2)
    (tmp_path / "list.jsonl").write_text('{"text": "a"}\n{"text": ["a", "b"]}\n')
    if "{here}" in str(settings):
        settings = json.loads(json.dumps(settings).replace("{here}", str(tmp_path)))
    with pytest.raises(UserError, match=sentence):
        build_predictions(
            BatchSettings(**usual | settings), models.tracker, own_context(models, tmp_path)
        )
