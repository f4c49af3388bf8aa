"""A family with a head of its own: two modules in their places, and nothing else is edited."""

import csv
import json
import os
import shutil
import subprocess
import sys
from importlib import invalidate_caches
from pathlib import Path

import numpy as np
import pytest
import torch

import bert_core.tasks
import pipelines.tasks
from bert_core.config import encoder_config
from bert_core.inference.tables import answer_table, question_of_head
from bert_core.model.catalogue import MODELS, PretrainingModel, SequenceRegressor
from bert_core.training.state import load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.config.errors import UserError
from pipelines.registry.packaging import signature_of
from pipelines.stages.finetuning.preparation import check_settings
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import families_of, family, family_of_model
from tests.pipelines.tasks.letters import CONFIG, TOKENS, numbers

ROOT = Path(__file__).parents[3]
HEAD = '''
"""A number that stays between a least and a greatest one."""

import torch

from bert_core.inference.labels import rate
from bert_core.inference.tables import Question
from bert_core.model.task_models import SequenceRegressor


class BoundedRegressor(SequenceRegressor):
    """Stars, grades, shares."""

    head_name = "bounded_regression"

    def __init__(self, config, least=0.0, greatest=1.0):
        super().__init__(config)
        self.least, self.greatest = least, greatest

    def head_settings(self):
        return {"least": self.least, "greatest": self.greatest}

    def forward(self, tokens, dropout_key=None):
        share = torch.sigmoid(super().forward(tokens, dropout_key))
        return self.least + (self.greatest - self.least) * share


def _stars(model, tokenizer, columns):
    return {"stars": rate(model, tokenizer, list(columns["text"])).values.astype(float).tolist()}


MODEL = BoundedRegressor
QUESTION = Question(("text",), (), _stars, {"stars": float})
'''
FAMILY = '''
"""Stars of a text, from none to five."""

from bert_core.tasks.bounded_regression import BoundedRegressor
from pipelines.tasks.regression import Regression


class Stars(Regression):
    models = (BoundedRegressor,)

    def build_model(self, config, labels):
        return BoundedRegressor(config, 0.0, 5.0)


FAMILY = Stars()
'''


def added(tree: Path) -> None:
    """The two modules, where docs/architecture.md says that they go."""
    for package, name, text in (
        ("bert_core", "bounded_regression", HEAD), ("pipelines", "stars", FAMILY),
    ):  # fmt: skip
        folder = tree / package / "tasks"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text(text.lstrip())


@pytest.fixture
def new_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages hold the two modules, for one test."""
    added(tmp_path)
    for package in (bert_core.tasks, pipelines.tasks):
        name = package.__name__
        folder = str(tmp_path.joinpath(*name.split(".")))
        monkeypatch.setattr(package, "__path__", [*package.__path__, folder])
    yield
    for name in ("bert_core.tasks.bounded_regression", "pipelines.tasks.stars"):
        sys.modules.pop(name, None)
    invalidate_caches()


def test_a_head_is_found_by_being_there(new_family: None, tmp_path: Path) -> None:
    model = family("stars").build_model(CONFIG, ())
    tokenizer = WordPieceTokenizer(TOKENS)
    save_model(tmp_path / "saved", model)
    again = load_model(tmp_path / "saved")
    assert type(again) is type(model)
    assert (again.least, again.greatest) == (0.0, 5.0)
    (stars,) = answer_table(again, tokenizer, {"text": ["a b c"]})["stars"]
    assert 0 < stars < 5
    check_settings(FinetuningSettings(), family("stars"))
    # It is a regressor, too, and yet of one family.
    assert isinstance(again, SequenceRegressor)
    assert list(families_of(again)) == ["stars"]


def test_a_family_whose_models_nobody_could_load_is_refused_before_it_trains(
    new_family: None, tmp_path: Path
) -> None:
    stars = family("stars")
    (tmp_path / "bert_core" / "tasks" / "bounded_regression.py").unlink()
    with pytest.raises(UserError, match=r"put it into bert_core/tasks/bounded_regression\.py"):
        check_settings(FinetuningSettings(), stars)


def test_of_two_families_with_one_model_a_person_says_which(
    new_family: None, tmp_path: Path
) -> None:
    text = FAMILY.replace(", 0.0, 5.0", "")
    (tmp_path / "pipelines" / "tasks" / "shares.py").write_text(text.lstrip())
    model = family("stars").build_model(CONFIG, ())
    with pytest.raises(UserError, match="shares and stars have; say which with --task"):
        family_of_model(model, "my-model")
    assert family_of_model(model, "my-model", "stars") == "stars"
    with pytest.raises(UserError, match="must be a model of the task tagging"):
        family_of_model(model, "my-model", "tagging")
    sys.modules.pop("pipelines.tasks.shares", None)
    encoder = PretrainingModel(encoder_config("tiny", 50))
    assert family_of_model(encoder, "an encoder") is None


@pytest.mark.parametrize("head", sorted(MODELS.keys() - {"language_model", "next_sentence"}))
def test_what_a_model_is_asked_says_what_it_is_served_as(head: str) -> None:
    question = question_of_head(head)
    assert tuple(question.example) == question.columns
    signature = signature_of(question)
    assert signature.inputs.input_names() == [*question.columns, *question.optional]
    assert signature.outputs.input_names() == list(question.answers)


@pytest.mark.slow
def test_a_new_family_is_trained_evaluated_registered_and_proved(tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "home"
    for package in ("bert_core", "pipelines", "flows"):
        shutil.copytree(ROOT / package, tree / package, ignore=_caches)
    added(tree)
    torch.manual_seed(0)
    save_model(tmp_path / "encoder", PretrainingModel(CONFIG))
    WordPieceTokenizer(TOKENS).save(tmp_path / "encoder")
    random = np.random.default_rng(0)
    with (tmp_path / "stars.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ("text", "label"))
        rows.writeheader()
        rows.writerows(numbers(random) for _ in range(200))
    options = [
        "--encoder", str(tmp_path / "encoder"), "--labels", str(tmp_path / "stars.csv"),
        "--task", "stars", "--home", str(home), "--training-workers", "1",
        "--set", "finetuning.num_epochs=1", "--set", "finetuning.compare_with_random=false",
        "--set", "finetuning.num_evaluations=1",
    ]  # fmt: skip
    run = command(tree, "run", *options)
    assert "loaded in a fresh process, reproduced its held-out score (exact)" in run
    figures = json.loads(
        command(tree, "evaluate", "--model", "own-task", "--labels", str(tmp_path / "stars.csv"),
                "--home", str(home), "--json")
    )  # fmt: skip
    assert figures["items"] == 200
    assert -1 <= figures["eval/pearson"] <= 1


def _caches(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


def command(tree: Path, *arguments: str) -> str:
    """What `bertsmith` prints, run with the code of `tree`."""
    done = subprocess.run(
        [sys.executable, "-c", "from flows.cli import main; main()", *arguments],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
