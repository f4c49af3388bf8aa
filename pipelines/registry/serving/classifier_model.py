"""The registered classifier: texts in, labels and probabilities out.

MLflow runs this file where the model is loaded; `bert_core` travels in the model's own code.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel, PythonModelContext

from bert_core.inference import classify
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer


class ClassifierModel(PythonModel):
    """Say of each text which label it has."""

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
        """One row per text of the column `text`: `label` and its `probability`."""
        texts = [str(text) for text in model_input["text"]]
        answers = classify(self.model, self.tokenizer, texts)
        return pd.DataFrame(
            {"label": answers.labels, "probability": answers.probabilities.max(axis=1).tolist()}
        )


mlflow.models.set_model(ClassifierModel())
