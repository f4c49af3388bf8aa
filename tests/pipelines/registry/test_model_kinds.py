"""Which task a model is of, and what it is asked, by its class."""

from pathlib import Path

import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from bert_core.inference.tables import question_of
from bert_core.model.catalogue import MODELS
from pipelines.registry.package import opened, signature_of
from pipelines.registry.served_model import ServedModel
from tests.pipelines.registry.test_serving import untrained


@pytest.mark.parametrize("head", sorted(MODELS.keys() - {"language_model", "next_sentence"}))
def test_what_a_model_is_asked_says_what_it_is_served_as(head: str) -> None:
    question = question_of(MODELS[head])
    assert tuple(question.example) == question.columns
    signature = signature_of(question)
    assert signature.inputs.input_names() == [*question.columns, *question.optional]
    assert signature.outputs.input_names() == list(question.answers)
    # MLflow drops a parameter that the signature lacks, and the model could not refuse it.
    assert {each.name for each in signature.params} == {"min_confidence", "min_precision"}


def test_a_model_without_one_probability_refuses_to_be_asked_for_one(tmp_path: Path) -> None:
    served = ServedModel()
    served.folder = untrained(tmp_path, "tagging").local_folder()
    served.model, served.tokenizer = opened(served.folder)
    texts = pd.DataFrame({"text": ["a b"]})
    assert len(served.predict(None, texts, {"min_confidence": None, "min_precision": 0.0})) == 1
    for name in ("min_confidence", "min_precision"):
        with pytest.raises(
            MlflowException, match=r"gives no one probability a row; leave out min_c"
        ):
            served.predict(None, texts, {name: 0.9})


def test_a_withheld_choice_makes_no_decimals_of_the_others(tmp_path: Path) -> None:
    served = ServedModel()
    served.folder = untrained(tmp_path, "multiple_choice").local_folder()
    served.model, served.tokenizer = opened(served.folder)
    rows = pd.DataFrame({"text": ["a", "b"], "choices": [["good", "bad"], ["x", "y", "z"]]})
    sure = served.predict(None, rows)["probability"]
    answers = served.predict(None, rows, {"min_confidence": float(sure.mean())})
    assert answers["choice"].map(type).tolist() == [int, type(None)]
    assert rows["choices"][0][answers["choice"][0]] in ("good", "bad")


def test_bytes_are_read_as_utf_8_or_refused(tmp_path: Path) -> None:
    served = ServedModel()
    folder = untrained(tmp_path, "classification").local_folder()
    served.model, served.tokenizer = opened(folder)
    texts = pd.DataFrame({"text": [b"good", "good"]})
    first, second = served.predict(None, texts)["probability"]
    assert first == second
    with pytest.raises(MlflowException, match="can't decode byte 0xff"):
        served.predict(None, pd.DataFrame({"text": [b"\xff"]}))
