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


def test_bytes_are_read_as_utf_8_or_refused(tmp_path: Path) -> None:
    served = ServedModel()
    folder = untrained(tmp_path, "classification").local_folder()
    served.model, served.tokenizer = opened(folder)
    texts = pd.DataFrame({"text": [b"good", "good"]})
    first, second = served.predict(None, texts)["probability"]
    assert first == second
    with pytest.raises(MlflowException, match="can't decode byte 0xff"):
        served.predict(None, pd.DataFrame({"text": [b"\xff"]}))
