"""Models as ONNX files, which ONNX Runtime computes without torch and without this package.

A model is written as `transformers` calls it: rows padded to one length in, whole tensors out. The
encoder, the heads and the plain backend are those of ragged batches; only the batch differs. Needs
the extra `onnx`: onnx and onnxscript to write files, onnxruntime to run them.

B = sequences, S = tokens of each, padding among them, T = B * S.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from bert_core.backends.operations import use_backend
from bert_core.batch import RaggedBatch
from bert_core.config import EmbeddingConfig
from bert_core.files import write_json
from bert_core.hugging_face.writing import architecture_of, their_config
from bert_core.model.catalogue import (
    EncoderModel,
    LanguageModel,
    Model,
    MultipleChoice,
    PretrainingModel,
    SentenceEncoder,
    SequenceRegressor,
    SpanPredictor,
    TokenClassifier,
    described,
)
from bert_core.model.rows import RowModel
from bert_core.vocabulary import WordPieceTokenizer

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
OPSET: Final = 18
MODEL_FILE: Final = "model.onnx"
_TRACED = (2, 8)  # sequences, and tokens where positions allow: any numbers but 0 and 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch(RaggedBatch):
    """B sequences of S tokens each; padding is computed and not used."""

    is_token: Tensor  # [B, S] bool

    def in_rows(self, compute: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> Tensor:
        return compute(values.unflatten(0, self.is_token.shape), self.is_token).flatten(0, 1)

    def mean(self, values: Tensor) -> Tensor:
        rows = values.unflatten(0, self.is_token.shape) * self.is_token[:, :, None]
        return rows.sum(dim=1) / self.is_token[:, :, None].sum(dim=1)


class PaddedModel(nn.Module):
    """`model` for three [B, S] tensors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Those of `outputs_of`, in their order: [B, S, ...] where they are of tokens."""
        num_sequences, size = input_ids.shape
        # Positions count from the first column, as in `transformers`.
        places = torch.arange(size, device=input_ids.device)
        tokens = PaddedBatch(
            input_ids=input_ids.flatten(),
            token_type_ids=token_type_ids.flatten(),
            position_ids=places.expand(num_sequences, size).flatten(),
            cu_seqlens=torch.arange(num_sequences + 1, device=input_ids.device) * size,
            lengths=(),
            max_seqlen=size,
            is_token=attention_mask > 0,
        )
        with use_backend("plain"):
            outputs = outputs_of(self.model, tokens)
        return tuple(
            values.unflatten(0, input_ids.shape) if is_of_tokens(self.model, name) else values
            for name, values in outputs.items()
        )


def is_of_tokens(model: Model, name: str) -> bool:
    """Whether the output of this name has a value for each token, not for each sequence."""
    if name == "logits":
        return isinstance(model, PretrainingModel | LanguageModel | TokenClassifier)
    return name != "seq_relationship_logits"


def outputs_of(model: Model, tokens: RaggedBatch) -> dict[str, Tensor]:
    """The outputs of an exported model by name: [T, ...] of tokens, [B, ...] of sequences.

    Of an encoder its hidden states; of language models logits at every token; of span prediction
    the logits of both ends; else the logits. The names are those that `transformers` and Optimum
    expect. Raises ValueError for a head whose answers are of several texts each.
    """
    if isinstance(model, RowModel | MultipleChoice):
        raise ValueError(
            f"{described(model.head_name)} cannot be written as ONNX: each of its answers is of "
            "several texts; export it for transformers, or keep its encoder alone"
        )
    if isinstance(model, EncoderModel | SentenceEncoder):
        return {"last_hidden_state": model.encoder(tokens)}
    if isinstance(model, PretrainingModel | LanguageModel):
        hidden = model.encoder(tokens)
        outputs = {"logits": model.vocabulary_head(hidden, model.encoder.embeddings)}
        if isinstance(model, PretrainingModel) and model.next_sentence:
            first = hidden.index_select(0, tokens.first_positions)
            logits = model.next_sentence_head(model.pooler(first), None)
            outputs["seq_relationship_logits"] = logits
        return outputs
    logits = model(tokens)
    if isinstance(model, SpanPredictor):
        return {"start_logits": logits[:, 0], "end_logits": logits[:, 1]}
    return {"logits": logits[:, None] if isinstance(model, SequenceRegressor) else logits}


def export_onnx(model: Model, path: Path | str) -> None:
    """Write `model` as the ONNX file `path`, for any number of sequences of any length it reads.

    Inputs are `input_ids`, `attention_mask` and `token_type_ids`, int64 [batch, tokens] with
    padding on the right. Outputs have the names that `transformers` and Optimum give them:
    `logits`, `start_logits` and `end_logits`, or of an encoder `last_hidden_state`. Weights are
    float32, in the file itself. Raises ValueError for a head that cannot be written, and
    ModuleNotFoundError without the extra `onnx`.
    """
    from onnxscript import ir  # torch's own message names no extra of ours

    padded = PaddedModel(model).eval()
    tokens = Dim("sequence_length", max=model.config.max_position_embeddings)
    shapes = ((Dim("batch_size"), tokens),) * len(INPUTS)
    traced = (_TRACED[0], min(_TRACED[1], model.config.max_position_embeddings))
    rows = tuple(torch.ones(traced, dtype=torch.int64, device=model.device) for _ in INPUTS)
    with torch.no_grad(), _quiet():
        names = tuple(outputs_of(model, RaggedBatch.from_sequences([[0, 0]]).to(model.device)))
        program = torch.export.export(padded, rows, dynamic_shapes=shapes)
        written = torch.onnx.export(
            program,
            (),
            dynamo=True,
            dynamic_shapes=shapes,  # their names
            opset_version=OPSET,
            input_names=INPUTS,
            output_names=names,
            verbose=False,
        )
    assert written is not None
    ir.save(written.model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block without the messages of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def write_onnx_folder(draft: Path, model: Model, tokenizer: WordPieceTokenizer) -> None:
    """Write `model.onnx`, the tokenizer and the settings of `model` into the folder `draft`.

    The tokenizer reads the texts of an encoder as its embedding settings say: lower-cased, and cut.
    Raises ValueError and ModuleNotFoundError as `export_onnx` does.
    """
    export_onnx(model, draft / MODEL_FILE)
    write_json(draft / "config.json", their_config(model, architecture_of(model), tokenizer))
    how = EmbeddingConfig()  # what other heads answer is no embedding
    if isinstance(model, EncoderModel | SentenceEncoder) and model.embedding is not None:
        how = model.embedding
    rules = tokenizer.normalization
    if how.lowercase:  # whose accents stay, unless the tokenizer removes them itself
        rules = replace(rules, lowercase=True, strip_accents=rules.strips_accents)
    WordPieceTokenizer(tokenizer.tokens, rules).save(
        draft,
        max_tokens=how.max_tokens or model.config.max_position_embeddings,
        fills_masks=model.head_name == "pretraining",
    )


class OnnxModel:
    """The ONNX file `path`, run by ONNX Runtime on the CPU; `model` is what it was made of."""

    def __init__(self, path: Path | str, model: Model) -> None:
        import onnxruntime

        self.model = model
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def outputs(self, tokens: RaggedBatch) -> dict[str, Tensor]:
        """What the file gives for `tokens`, padded on the way: as `outputs_of` the model."""
        rows = (tokens.input_ids, torch.ones_like(tokens.input_ids), tokens.token_type_ids)
        arrays = [tokens.padded(values, 0).numpy() for values in rows]
        names = [each.name for each in self.session.get_outputs()]
        answers = self.session.run(names, dict(zip(INPUTS, arrays, strict=True)))
        outputs = {name: torch.from_numpy(each) for name, each in zip(names, answers, strict=True)}
        return {
            name: values.flatten(0, 1)[tokens.padded_positions]
            if is_of_tokens(self.model, name)
            else values
            for name, values in outputs.items()
        }

    @torch.inference_mode()
    def compare(self, batches: Iterable[RaggedBatch]) -> tuple[float, float]:
        """Largest difference of any output from the model's own, and largest of these values."""
        difference = magnitude = 0.0
        for tokens in batches:
            outputs = self.outputs(tokens)
            for name, ours in outputs_of(self.model, tokens).items():
                far = float((outputs[name] - ours).abs().max())
                difference = max(difference, far if np.isfinite(far) else np.inf)
                magnitude = max(magnitude, float(ours.abs().max()))
        return difference, magnitude
