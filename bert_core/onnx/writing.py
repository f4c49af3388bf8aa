"""A model's graph as a file of the ONNX format."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch.export import Dim

from bert_core.model.catalogue import Model, MultipleChoice
from bert_core.onnx.padded import INPUTS, PaddedModel

OPSET: Final = 18
LARGEST_IN_ONE_FILE = 3 * 2**29  # bytes of weights, as torch decides it; protobuf ends at 2**31
_TRACED = (2, 3, 8)  # questions, choices of each, tokens: any numbers but 0 and 1


def export_onnx(model: Model, path: Path | str) -> None:
    """Write `model` as the ONNX file `path`, for any number of sequences of any length it reads.

    Inputs are `input_ids`, `attention_mask` and `token_type_ids`, int64 [batch, tokens] with
    padding on the right, of multiple choice [batch, choices, tokens]. Outputs have the names that
    `transformers` and Optimum give them: `logits`, `start_logits` and `end_logits`, or
    `last_hidden_state` and, of an encoder that says how it makes vectors, `sentence_embedding`.
    Weights are float32, in the file itself, or beside it in `data_path(path)` where they are more
    than protobuf can hold. Raises ValueError for a head that cannot be written, and
    ModuleNotFoundError without the extra `onnx`.
    """
    from onnxscript import ir  # torch's own message names no extra of ours

    padded = PaddedModel(model).eval()
    batch, choices = Dim("batch_size"), Dim("num_choices")
    tokens = Dim("sequence_length", max=model.config.max_position_embeddings)
    is_choice = isinstance(model, MultipleChoice)
    shape = _TRACED if is_choice else (_TRACED[0], _TRACED[2])
    axes = (batch, choices, tokens) if is_choice else (batch, tokens)
    rows = tuple(torch.ones(shape, dtype=torch.int64, device=model.device) for _ in INPUTS)
    with torch.no_grad(), quiet():
        shapes = (axes,) * len(INPUTS)
        program = torch.export.export(padded, rows, dynamic_shapes=shapes)
        written = torch.onnx.export(
            program,
            (),
            dynamo=True,
            dynamic_shapes=shapes,  # their names
            opset_version=OPSET,
            input_names=INPUTS,
            output_names=padded.output_names,
            verbose=False,
        )
    assert written is not None
    is_large = sum(each.nbytes for each in model.state_dict().values()) > LARGEST_IN_ONE_FILE
    ir.save(written.model, path, external_data=data_path(path).name if is_large else None)


def data_path(path: Path | str) -> Path:
    """The file of weights over `LARGEST_IN_ONE_FILE`; the name is that of transformers.js."""
    return Path(f"{path}_data")


@contextmanager
def quiet() -> Iterator[None]:
    """A block without the messages of the exporter and the quantizer."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
