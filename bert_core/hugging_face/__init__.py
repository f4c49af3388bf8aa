"""Hugging Face BERT directories, in and out. `transformers` itself is not needed for either."""

from bert_core.hugging_face.reading import READING_VERSION, import_model
from bert_core.hugging_face.sentence_transformers import model_folder
from bert_core.hugging_face.writing import export_model, reads_mean
