"""Every family learns a small task of its kind, from its items to its score."""

import numpy as np
import pytest
import torch

from bert_core.model.catalogue import PretrainingModel
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.tasks import FAMILIES, Reading, encoding, family, family_of_model
from pipelines.tasks.encoding import batches
from tests.pipelines.tasks.letters import CONFIG, TASKS, learn, parts


def test_every_family_has_a_task_here_and_an_encoder_is_of_none() -> None:
    assert set(FAMILIES) == set(TASKS)
    assert family_of_model(PretrainingModel(CONFIG)) is None


@pytest.mark.parametrize("name", TASKS)
def test_a_family_learns_a_task_of_its_kind(name: str, tokenizer: WordPieceTokenizer) -> None:
    task, (train_items, heldout) = family(name), parts(name)
    torch.manual_seed(0)
    model = task.build_model(CONFIG, train_items.labels)
    assert family_of_model(model) == name
    reading = Reading(CONFIG.max_position_embeddings)
    examples = task.examples(train_items, tokenizer, reading)

    learn(model, examples, TASKS[name].steps)
    answers = task.answers(model, tokenizer, heldout, reading)
    figures = task.figures(answers, heldout)
    described = task.described(train_items, heldout)
    assert figures[task.score] > TASKS[name].enough
    baseline = described.get(task.score.replace("eval/", "baseline/"), 0.0)
    assert figures[task.score] > baseline
    assert set(task.curve) <= set(model.evaluation_sums(next(batches(examples, 16, 0, 1))[1]))
    task.report(answers, heldout)


@pytest.mark.parametrize("name", TASKS)
def test_answers_of_two_ranks_are_those_of_one(
    name: str, tokenizer: WordPieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, (_, heldout) = family(name), parts(name)
    torch.manual_seed(0)
    model = task.build_model(CONFIG, heldout.labels)
    reading = Reading(CONFIG.max_position_embeddings)
    alone = task.answers(model, tokenizer, heldout, reading)
    # What each of two ranks would bring to the sum.
    module = __import__(f"pipelines.tasks.{name}", fromlist=["sum_over_ranks"])
    if not hasattr(module, "sum_over_ranks"):
        module = encoding
    brought: list[np.ndarray] = []

    def note(values: np.ndarray) -> np.ndarray:
        brought.append(values.copy())
        return values

    monkeypatch.setattr(module, "sum_over_ranks", note)
    for rank in range(2):
        task.answers(model, tokenizer, heldout, reading._replace(rank=rank, world_size=2))
    monkeypatch.setattr(module, "sum_over_ranks", lambda values: brought[0] + brought[1])
    together = task.answers(model, tokenizer, heldout, reading._replace(world_size=2))
    assert together.values == alone.values
