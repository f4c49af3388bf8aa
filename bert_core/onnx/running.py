"""An exported file, run and compared with its model.

B = sequences, S = tokens of the longest, T = ragged tokens.
"""

import copy
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bert_core.model.catalogue import Model, MultipleChoice
from bert_core.onnx.padded import INPUTS, answer_of, is_of_tokens, output_names, outputs_of
from bert_core.onnx.writing import data_path
from bert_core.ragged import RaggedBatch


@dataclass
class OnnxModel:
    """An ONNX file, run by ONNX Runtime on the CPU; `model` is what it was made of.

    It counts sequences and seconds, and the largest difference from the model's outputs.
    """

    path: Path
    model: Model
    num_threads: int = 0  # 0: one for each core
    difference: float = 0.0  # the largest of any output's value
    magnitude: float = 0.0  # the largest value of the model's own outputs
    num_sequences: int = 0
    seconds: float = 0.0  # in ONNX Runtime
    session: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.num_threads
        self.session = onnxruntime.InferenceSession(
            str(self.path), options, providers=["CPUExecutionProvider"]
        )

    @property
    def num_bytes(self) -> int:
        """Of the file, and of the one with its weights if there is one."""
        files = (self.path, data_path(self.path))
        return sum(each.stat().st_size for each in files if each.exists())

    def outputs(self, tokens: RaggedBatch) -> dict[str, Tensor]:
        """What the file gives for `tokens`, padded on the way: as `outputs_of` the model."""
        rows = dict(zip(INPUTS, self._rows(tokens), strict=True))
        names = output_names(self.model)
        start = time.perf_counter()
        found = self.session.run(list(names), rows)
        self.seconds += time.perf_counter() - start
        self.num_sequences += tokens.num_sequences
        outputs = {name: torch.from_numpy(each) for name, each in zip(names, found, strict=True)}
        if isinstance(self.model, MultipleChoice):
            return {"logits": outputs["logits"][0]}
        index = tokens.padded_positions
        return {
            name: values.flatten(0, 1)[index] if is_of_tokens(self.model, name) else values
            for name, values in outputs.items()
        }

    def answering(self, *, compared: bool = False) -> Model:
        """A model that computes with the file and can be used like the original one.

        With `compared` the original computes the same: see `compare`.
        """
        twin = copy.copy(self.model)

        def forward(tokens: RaggedBatch, *rest: Any) -> Any:
            outputs = self.compare(tokens) if compared else self.outputs(tokens)
            return answer_of(self.model, outputs, *rest)

        twin.__dict__["forward"] = forward
        return twin

    @torch.inference_mode()
    def compare(self, tokens: RaggedBatch) -> dict[str, Tensor]:
        """The same `outputs`, compared with the model's: updates `difference` and `magnitude`."""
        outputs = self.outputs(tokens)
        for name, ours in outputs_of(self.model, tokens).items():
            far = float((outputs[name] - ours).abs().max())
            self.difference = max(self.difference, far if np.isfinite(far) else np.inf)
            self.magnitude = max(self.magnitude, float(ours.abs().max()))
        return outputs

    def _rows(self, tokens: RaggedBatch) -> list[np.ndarray]:
        """The inputs, [B, S]; of multiple choice all sequences are choices of one question."""
        is_token = torch.ones_like(tokens.input_ids)
        rows = [
            tokens.padded(values, 0).numpy()
            for values in (tokens.input_ids, is_token, tokens.token_type_ids)
        ]
        return [each[None] for each in rows] if isinstance(self.model, MultipleChoice) else rows
