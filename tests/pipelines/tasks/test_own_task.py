"""A task of one's own: what its file must hold, and that it learns, is saved and answers."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_core.inference.tables import answer_table
from bert_core.model.rows import CODE_FILE, RowModel, row_model
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.registry.package import local_model
from pipelines.stage import StageContext
from pipelines.stages.dataset.items import check_inputs
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, family_of, read_items
from pipelines.store import ArtifactStore
from pipelines.tasks import Items, Reading, family, family_for
from pipelines.tasks.encoding import batches
from tests.pipelines.tasks.letters import CONFIG, learn
from tests.pipelines.tasks.own_task import ranking, row, write_rows

SCORED = "be one that Ranking can read and score"
READING = Reading(CONFIG.max_position_embeddings)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ranking.py"
    path.write_text(ranking(), encoding="utf-8")
    return path


def items(count: int, seed: int) -> Items:
    random = np.random.default_rng(seed)
    return Items([row(random) for _ in range(count)])


def model_of(source: str) -> RowModel:
    torch.manual_seed(0)
    return row_model(source, "ranking")(CONFIG)


def test_the_page_s_task_learns(file: Path, tokenizer: WordPieceTokenizer) -> None:
    task, learned, heldout = family(str(file)), items(240, 0), items(60, 1)
    torch.manual_seed(0)
    model = task.build_model(CONFIG, ())
    examples = task.examples(learned, tokenizer, READING)

    learn(model, examples, 60)
    figures = task.figures(task.answers(model, tokenizer, heldout, READING), heldout)
    guessed = task.described(learned, heldout)["baseline/reciprocal_rank"]
    assert figures["eval/reciprocal_rank"] > max(0.8, guessed)
    assert set(model.evaluation_sums(next(batches(examples, 16, 0, 1))[1])) == set(task.curve)


_READ = """
import pickle, sys
model = pickle.load(open(sys.argv[1], "rb"))
weights = sum(each.detach().double().sum() for each in model.parameters())
print(type(model).__name__, type(model.head).__name__, float(weights))
"""


def test_a_model_is_pickled_with_its_file_for_processes_that_have_not_run_it(
    tmp_path: Path,
) -> None:
    # A part whose class stands in the file, too: it is read after the file was run.
    source = ranking().replace("self.head = TaskHead(", "self.head = Scorer(")
    model = model_of(source + "\n\nclass Scorer(TaskHead):\n    pass\n")
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps(model))
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, timeout=120
    )
    weights = sum(float(each.detach().double().sum()) for each in model.parameters())
    assert done.returncode == 0, done.stderr
    name, head, found = done.stdout.split()
    assert [name, head] == ["Ranking", "Scorer"]
    assert float(found) == pytest.approx(weights)


def test_a_saved_model_carries_its_file_and_answers_as_before(
    tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    model, rows = model_of(ranking()), items(40, 2)
    save_model(tmp_path / "saved", model)
    assert (tmp_path / "saved" / CODE_FILE).read_text(encoding="utf-8") == ranking()
    again = load_model(tmp_path / "saved")
    assert isinstance(again, RowModel)
    columns = {name: [each[name] for each in rows.rows] for name in again.takes}
    table = answer_table(again, tokenizer, columns)
    task = family_for(again, again.head_name)
    alone = task.answers(model, tokenizer, rows, READING)
    found = zip(alone.values, table["scores"], strict=True)  # whose weights are packed
    assert all(each["scores"] == pytest.approx(scores, abs=1e-6) for each, scores in found)


def test_a_model_without_its_code_says_so(tmp_path: Path) -> None:
    save_model(tmp_path / "saved", model_of(ranking()))
    (tmp_path / "saved" / CODE_FILE).unlink()
    with pytest.raises(ValueError, match=r"code of its own, task\.py, found 'ranking' and no such"):
        load_model(tmp_path / "saved")


def test_nobody_s_folder_runs_its_code(tmp_path: Path) -> None:
    save_model(tmp_path / "given", model_of(ranking()))
    (tmp_path / "given" / CODE_FILE).write_text("raise SystemExit('it was run')\n")
    context = StageContext(store=ArtifactStore(tmp_path / "store"))
    with pytest.raises(UserError, match=r"carries the code of its model, task\.py, which loading"):
        local_model(str(tmp_path / "given"), context)


def settings_of(file: Path, rows: Path, **source: Any) -> DatasetSettings:
    return DatasetSettings(family=str(file), source=LabelledFile(path=str(rows), **source))


def test_the_items_carry_the_file_and_its_bytes_name_them(file: Path, tmp_path: Path) -> None:
    context = StageContext(store=ArtifactStore(tmp_path / "store"))
    settings = settings_of(file, write_rows(tmp_path / "rows.jsonl", 60))
    first = build_dataset(settings, None, context)
    assert build_dataset(settings, None, context).fingerprint == first.fingerprint
    file.write_text(f"{ranking()}\n# another\n", encoding="utf-8")
    assert build_dataset(settings, None, context).fingerprint != first.fingerprint
    file.unlink()  # as on another node
    assert family_of(first).score == "eval/reciprocal_rank"
    assert first.statistics["family"] == "ranking"
    assert len(read_items(first, "train").rows) > 30


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"query": "a", "candidates": ["b"]}', "have a value in query, candidates, best"),
        ('{"query": "a", "candidates": "b", "best": 0}', "have a list of texts in candidates"),
        ('{"query": "a", "candidates": ["b"], "best": 3}', SCORED),
        ('{"query": "a", "candidates": [], "best": 0}', SCORED),
    ],
)
def test_a_row_that_cannot_be_learned_is_refused_with_its_line(
    file: Path, tmp_path: Path, line: str, words: str
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 30)
    rows.write_text(f"{rows.read_text()}{line}\n")
    with pytest.raises(UserError, match=rf"{words}.* in line 31"):
        check_inputs(settings_of(file, rows))


def test_columns_have_the_names_that_the_task_says(file: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 30)
    with pytest.raises(UserError, match="no column by text_column; leave it out"):
        check_inputs(settings_of(file, rows, text_column="question"))
    with pytest.raises(UserError, match="no column 'author'"):
        check_inputs(settings_of(file, rows, group_column="author"))
    rows = tmp_path / "rows.csv"
    rows.write_text("query,candidates,query,best\na,[],b,0\n")
    with pytest.raises(UserError, match=r"two columns .query.; rename or remove one of them"):
        check_inputs(settings_of(file, rows))


LOSS = ranking().index("    def loss(")
ANSWER = ranking().index("    def answer(")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class Ranking(:\n", r"must be Python, but line 1 is not \(invalid syntax\); correct it"),
        ("x = 1\n\n1 / 0\n", "could not be run: ZeroDivisionError in line 3"),
        ("import torch\n", "one class that extends bert_core.RowModel, found none"),
        (ranking().replace("    takes =", "    asks ="), "must say what it takes: columns by name"),
        (ranking().replace("best\": int", "best\": dict"), "must say what it learns"),
        (ranking()[:LOSS] + ranking()[ANSWER:], "must define loss, found none; add it"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_task_is_refused_in_a_sentence(
    file: Path, source: str, words: str
) -> None:
    file.write_text(source)
    with pytest.raises(UserError, match=words) as refused:
        family(str(file))
    assert str(refused.value).startswith(f"the task {file} cannot be used: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["regression.py", "token_classification.py", "My-Task.py"])
def test_a_name_of_ours_is_not_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(ranking())
    with pytest.raises(UserError, match=r"cannot be the name of a task.*; rename "):
        family(str(tmp_path / name))
