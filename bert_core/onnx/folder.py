"""A folder around an ONNX file that Optimum, transformers.js and sentence-transformers open."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from bert_core.files.json_files import write_json
from bert_core.hugging_face.sentence_transformers import POOLINGS, write_embedding
from bert_core.hugging_face.writing import architecture_of, embedding_of, their_config
from bert_core.model.catalogue import EncoderModel, Model, SentenceEncoder
from bert_core.onnx.writing import data_path, export_onnx, quiet
from bert_core.vocabulary import WordPieceTokenizer

MODEL_FILE: Final = "model.onnx"
QUANTIZED_FILE: Final = "model_quantized.onnx"  # what transformers.js and Optimum call it


def encoder_alone(model: Model, pooling: str) -> EncoderModel:
    """The encoder of `model`, which makes vectors by `pooling`.

    It shares the weights. Raises ValueError for a pooling that sentence-transformers lacks.
    """
    with torch.device("meta"):  # its own weights are replaced
        alone = EncoderModel(model.config, pooler=False)
    alone.encoder, alone.embedding = model.encoder, embedding_of(model, pooling)
    return alone


def write_onnx_folder(draft: Path, model: Model, tokenizer: WordPieceTokenizer) -> None:
    """Write `model.onnx`, the tokenizer and the settings of `model` into the folder `draft`.

    Weights of more than 1.5 GiB are in `model.onnx_data`. Raises ValueError and
    ModuleNotFoundError as `export_onnx` does.
    """
    export_onnx(model, draft / MODEL_FILE)
    config = model.config
    described = their_config(model, architecture_of(model), tokenizer)
    if data_path(draft / MODEL_FILE).exists():
        described["transformers.js_config"] = {"use_external_data_format": {MODEL_FILE: True}}
    write_json(draft / "config.json", described)
    tokenizer.save(draft, max_tokens=config.max_position_embeddings)
    how = model.embedding
    if isinstance(model, EncoderModel | SentenceEncoder) and how and how.pooling in POOLINGS:
        how = replace(how, normalize=how.normalize or isinstance(model, SentenceEncoder))
        write_embedding(draft, how, config.hidden_size, config.max_position_embeddings)


def quantize(draft: Path) -> None:
    """Write `model_quantized.onnx`: int8 weights, and activations quantized dynamically.

    Matrices have a scale for each column and the embeddings one scale. Raises ModuleNotFoundError
    without the extra `onnx`.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet():
        quantize_dynamic(
            draft / MODEL_FILE,
            draft / QUANTIZED_FILE,
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
