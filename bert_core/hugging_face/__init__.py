"""Hugging Face BERT directories, in and out. `transformers` itself is not needed for either."""

from bert_core.hugging_face.reading import import_model
from bert_core.hugging_face.writing import export_model

__all__ = ["export_model", "import_model"]
