"""A registered model: rows in, answers out; which columns, its head says.

MLflow runs this file where the model is loaded; `bert_core` travels in the model's own code.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel, PythonModelContext

from bert_core.inference.tables import answer_table, question_of
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer


class ServedModel(PythonModel):
    """Answer each row of a table."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read weights, labels and tokenizer."""
        folder = Path(context.artifacts["model"])
        self.model = load_model(folder)
        self.tokenizer = WordPieceTokenizer.from_directory(folder)

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """One row of answers for each row of `model_input`."""
        question = question_of(self.model)
        columns = {
            name: [
                None if value is None or value is pd.NA else value for value in model_input[name]
            ]
            for name in (*question.columns, *question.optional)
            if name in model_input and not model_input[name].isna().all()
        }
        return pd.DataFrame(answer_table(self.model, self.tokenizer, columns))


mlflow.models.set_model(ServedModel())
