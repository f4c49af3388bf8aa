"""The registered encoder: texts in, embeddings out.

MLflow runs this file where the model is loaded; `bert_core` travels in the model's own code.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel, PythonModelContext

from bert_core.inference import embed
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer


class EncoderModel(PythonModel):
    """Turn each text into one vector: the mean of its tokens' last hidden states, normalised."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read weights and tokenizer."""
        folder = Path(context.artifacts["model"])
        self.model = load_model(folder)
        self.tokenizer = WordPieceTokenizer.from_directory(folder)

    def predict(
        self,
        context: PythonModelContext,
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """One row per text of the column `text`: its `embedding`."""
        texts = [str(text) for text in model_input["text"]]
        embedded = embed(self.model, self.tokenizer, texts)
        return pd.DataFrame({"embedding": embedded.vectors.astype("float64").tolist()})


mlflow.models.set_model(EncoderModel())
