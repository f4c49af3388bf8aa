"""Answers to whole files: every row once, the same bytes after a kill, by one version."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_core.model.catalogue import build_model
from pipelines.cluster import connect, disconnect
from pipelines.errors import UserError
from pipelines.predict import batch_prediction
from pipelines.predict.batch_prediction import (
    KIND,
    LISTING,
    BatchSettings,
    _read_through,
    build_predictions,
)
from pipelines.predict.tables import FileTable
from pipelines.registry.register import RegisteredModel, Submission, register
from pipelines.settings import RuntimeSettings
from pipelines.stage import Progress, StageContext
from pipelines.store import ArtifactStore
from tests.integration.object_stores import BUCKET, s3_server
from tests.pipelines.registry.conftest import Models
from tests.pipelines.registry.test_serving import untrained
from tests.pipelines.tasks.letters import CONFIG


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
    assert shards(tmp_path / "answers") == shards(tmp_path / "store")
    assert pq.read_table(tmp_path / "answers").num_rows == 30
    again = BatchSettings(model="encoder/1", files=(str(tmp_path / "answers"),))
    asked_again = build_predictions(again, models.tracker, own_context(models, tmp_path / "again"))
    assert asked_again.statistics["rows"] == 30

    models.register(models.encoder(2))
    assert build_predictions(settings, models.tracker, own_context(models, tmp_path)).reused
    models.tracker.client().set_registered_model_alias("encoder", "champion", "2")
    other = build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert other.statistics["model"] == "encoder/2"
    assert other.fingerprint != made.fingerprint


def test_words_that_are_split_already_are_tagged_in_whole_files_too(
    models: Models, tmp_path: Path
) -> None:
    tagger = registered_tagger(models, tmp_path)
    sentences = [["Ada", "wrote,to"], ["Charles"]]
    rows = [{"split": words, "tags": ["O"] * len(words)} for words in sentences]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for columns in ({"words": "split"}, {"text": "split"}):
        settings = BatchSettings(
            model=f"tagger/{tagger.version}", files=(str(tmp_path / "a.jsonl"),), columns=columns
        )  # fmt: skip
        made = build_predictions(settings, models.tracker, own_context(models, tmp_path))
        found = pq.read_table(made.local("part-00000-00000.parquet")).to_pydict()
        assert found["words"] == sentences
        assert [len(tags) for tags in found["tags"]] == [2, 1]


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
    answered = [progress for progress in told if progress.stage == KIND]
    assert answered[0].note == f"resumed: {10 * len(kept)} rows were answered before"
    assert len(answered) == 5 - len(kept)
    assert (answered[-1].done, answered[-1].total) == (45, 45)


def test_a_file_that_changes_ends_the_run_and_its_answers_are_used_by_no_later_one(
    models: Models, tmp_path: Path
) -> None:
    models.register(models.encoder(1))
    path = Path(texts(tmp_path, "a.parquet", 25))
    before, other = path.read_bytes(), Path(texts(tmp_path, "b.parquet", 25))
    settings = BatchSettings(model="encoder/1", files=(str(path),), rows_per_shard=10)
    build_predictions(settings, models.tracker, own_context(models, tmp_path / "1"))

    def replace_file(progress: Progress) -> None:
        if (progress.stage, progress.done) == ("reading", 25):
            other.replace(path)

    context = own_context(models, tmp_path / "2")
    with pytest.raises(UserError, match=r"a\.parquet changed during the run; wait until nothing"):
        build_predictions(settings, models.tracker, replace(context, observe=replace_file))
    assert shards(tmp_path / "2")
    path.write_bytes(before)
    made = build_predictions(settings, models.tracker, context)
    assert not made.reused
    assert shards(tmp_path / "2") == shards(tmp_path / "1")


def test_a_mistake_in_the_last_row_ends_the_run_before_the_first_answer(
    models: Models, tmp_path: Path
) -> None:
    models.register(models.encoder(1))
    (tmp_path / "a.csv").write_text("text,other\n" + "one,1\n" * 25 + ",2\n")
    settings = BatchSettings(
        model="encoder/1", files=(str(tmp_path / "a.csv"),), rows_per_shard=10
    )  # fmt: skip
    with pytest.raises(UserError, match=r"row 25 of .*a\.csv, counted from 0, has no text"):
        build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert not shards(tmp_path / "store")


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
    schemas = {pq.read_schema(path) for path in (tmp_path / "answers").glob("*.parquet")}
    assert len(schemas) == 1
    found = pq.read_table(tmp_path / "answers").to_pydict()
    assert found["text"] == ["a b", "5", None, "e"]
    assert found["words"] == [["a", "b"], ["5"], ["c", "d"], ["e"]]


@pytest.mark.parametrize("value", [["a", "b"], {"a": "b"}])
def test_a_cell_that_is_no_text_ends_the_run_before_the_first_answer(
    models: Models, tmp_path: Path, value: object
) -> None:
    models.register(models.encoder(1))
    rows = [{"text": "a"}] * 12 + [{"text": value}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = BatchSettings(model="encoder/1", files=(str(tmp_path / "a.jsonl"),))
    with pytest.raises(UserError, match=r"row 12 of .*: text must be a text, found"):
        build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert not shards(tmp_path / "store")


def test_pairs_and_texts_are_not_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {
        "a": FileTable("a", [0], {"text": ["a"], "second_text": ["b"]}),
        "b": FileTable("b", [0], {"text": ["c"]}),
    }
    monkeypatch.setattr(batch_prediction, "asked_shards", lambda path, *_: iter([tables[path]]))
    model = build_model("sentence_embedding", CONFIG)
    watch = StageContext(store=None)
    read = partial(_read_through, model, BatchSettings(), context=watch)
    assert read([("a", "")]) == (1, ["text", "second_text"])
    with pytest.raises(UserError, match=r"have a column second_text and others have none \(b\)"):
        read([("a", ""), ("b", "")])


def test_the_shards_of_an_earlier_prediction_go_and_nothing_else(
    models: Models, tmp_path: Path
) -> None:
    models.register(models.encoder(1))
    path, answers = texts(tmp_path, "a.parquet", 30), tmp_path / "answers"
    answers.mkdir()
    (answers / "part-99999-99999.parquet").write_bytes(b"somebody else's")
    settings = BatchSettings(
        model="encoder/1", files=(path,), rows_per_shard=10, out=str(answers)
    )  # fmt: skip
    build_predictions(settings, models.tracker, own_context(models, tmp_path))
    assert len(shards(answers)) == 4
    fewer = settings.model_copy(update={"rows_per_shard": 100})
    build_predictions(fewer, models.tracker, own_context(models, tmp_path))
    assert sorted(shards(answers)) == ["part-00000-00000.parquet", "part-99999-99999.parquet"]
    assert json.loads((answers / LISTING).read_text())["files"] == ["part-00000-00000.parquet"]


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
        found = store.filesystem.ls(f"{BUCKET}/answers", detail=False)
        names = sorted(path.rpartition("/")[2] for path in found)
        assert names == sorted([LISTING, *made.names()])
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
        ({"columns": {"text": "review"}}, "has no column 'review'"),
        ({"files": ("{here}",), "out": "{here}/answers"}, "would be asked at the next run"),
        ({"columns": {"question": "text"}}, "is asked about text, once each: leave out"),
        ({"columns": {"second_text": "b"}}, "column 'b', which was named as second_text"),
        ({"out": "no-such-scheme://bucket/x"}, "answers cannot be copied to no-such-scheme://"),
        ({"model": "nobody@champion"}, "no model 'nobody' with the alias"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(
    models: Models, tmp_path: Path, settings: dict, sentence: str
) -> None:
    models.register(models.encoder(1))
    usual = {"model": "encoder/1", "files": (texts(tmp_path, "a.parquet", 2),)}
    if "{here}" in str(settings):
        settings = {"files": (str(tmp_path),), "out": str(tmp_path / "answers")}
    with pytest.raises(UserError, match=sentence):
        build_predictions(
            BatchSettings(**usual | settings), models.tracker, own_context(models, tmp_path)
        )
