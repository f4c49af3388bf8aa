"""Models as ONNX files, which ONNX Runtime computes without torch and without this package.

A model is written as `transformers` calls it: rows padded to one length in, whole tensors out. The
encoder, the heads and the plain backend are those of ragged batches; only the batch differs. Needs
the extra `onnx`: onnx and onnxscript to write files, onnxruntime to run them.

B = sequences, S = tokens of each, padding among them, T = B * S, C = choices of a question, D =
hidden size.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from bert_core.backends.operations import use_backend
from bert_core.batch import RaggedBatch
from bert_core.files import write_json
from bert_core.hugging_face.sentence_transformers import write_embedding
from bert_core.hugging_face.writing import architecture_of, embedding_of, their_config
from bert_core.model.catalogue import (
    EncoderModel,
    LanguageModel,
    Model,
    MultipleChoice,
    NextSentencePredictor,
    PretrainingModel,
    SentenceEncoder,
    SequenceRegressor,
    SpanPredictor,
    TokenClassifier,
    described,
)
from bert_core.model.task_models import TextLabeller
from bert_core.vocabulary import WordPieceTokenizer

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
OPSET: Final = 18
MOST_BYTES = 2**31 - 2**24  # of weights: protobuf ends at 2**31, and the graph needs some
MODEL_FILE: Final = "model.onnx"
# Outputs with a value for each token; the others have one for each sequence.
OF_TOKENS: Final = ("last_hidden_state", "start_logits", "end_logits")
_TRACED = (2, 3, 8)  # questions, choices of each, tokens: any numbers but 0 and 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch(RaggedBatch):
    """B sequences of S tokens each; padding is computed and not used."""

    is_token: Tensor  # [B, S] bool

    @classmethod
    def from_rows(cls, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Self:
        """Of three [B, S] int64; positions count from the first column, as in `transformers`."""
        num_sequences, size = input_ids.shape
        places = torch.arange(size, device=input_ids.device)
        starts = torch.arange(num_sequences + 1, device=input_ids.device) * size
        return cls(
            input_ids=input_ids.flatten(),
            token_type_ids=token_type_ids.flatten(),
            position_ids=places.expand(num_sequences, size).flatten(),
            cu_seqlens=starts,
            lengths=(),
            max_seqlen=size,
            is_token=attention_mask > 0,
        )

    def in_rows(self, compute: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> Tensor:
        return compute(values.unflatten(0, self.is_token.shape), self.is_token).flatten(0, 1)

    def mean(self, values: Tensor) -> Tensor:
        rows = values.unflatten(0, self.is_token.shape) * self.is_token[:, :, None]
        return rows.sum(dim=1) / self.is_token[:, :, None].sum(dim=1)


class PaddedModel(nn.Module):
    """`model` for three [B, S] tensors, or [B, C, S] of questions with C choices each.

    Its outputs are those of `outputs_of`, [B, S, ...] where they are of tokens. Raises ValueError
    for a head that has no such outputs.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.is_choice = isinstance(model, MultipleChoice)
        self.output_names = output_names(model)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """The outputs, in the order of `output_names`."""
        rows = [values.flatten(0, -2) for values in (input_ids, attention_mask, token_type_ids)]
        tokens = PaddedBatch.from_rows(*rows)
        with use_backend("plain"):
            outputs = outputs_of(self.model, tokens)
        if self.is_choice:
            return (outputs["logits"].view(input_ids.shape[:2]),)
        shape = input_ids.shape
        return tuple(
            values.unflatten(0, shape) if is_of_tokens(self.model, name) else values
            for name, values in outputs.items()
        )


def output_names(model: Model) -> tuple[str, ...]:
    """The names of the outputs, as `transformers` and Optimum expect; see `outputs_of`."""
    if isinstance(model, EncoderModel | SentenceEncoder):
        vector = () if model.embedding is None else ("sentence_embedding",)
        return ("last_hidden_state", *vector)
    if isinstance(model, PretrainingModel):
        return ("logits", "seq_relationship_logits") if model.next_sentence else ("logits",)
    if isinstance(model, SpanPredictor):
        return ("start_logits", "end_logits")
    known = (LanguageModel, MultipleChoice, NextSentencePredictor, SequenceRegressor, TextLabeller,
             TokenClassifier)  # fmt: skip
    if not isinstance(model, known):
        raise ValueError(
            f"{described(model.head_name)} cannot be written as ONNX: its outputs have no known "
            "names; export its encoder"
        )
    return ("logits",)


def is_of_tokens(model: Model, name: str) -> bool:
    """Whether the output of this name has a value for each token, not for each sequence."""
    of_tokens = isinstance(model, PretrainingModel | LanguageModel | TokenClassifier)
    return name in OF_TOKENS or (name == "logits" and of_tokens)


def outputs_of(model: Model, tokens: RaggedBatch) -> dict[str, Tensor]:
    """The outputs of an exported model by name: [T, ...] of tokens, [B, ...] of sequences.

    Of an encoder its hidden states and, where it says how it makes them, vectors; of language
    models logits at every token; of span prediction the logits of both ends; else the logits.
    """
    if isinstance(model, EncoderModel | SentenceEncoder):
        values = [hidden := model.encoder(tokens)]
        if model.embedding is not None:
            values.append(_vectors(model, hidden, tokens))
    elif isinstance(model, PretrainingModel | LanguageModel):
        hidden = model.encoder(tokens)
        values = [model.vocabulary_head(hidden, model.encoder.embeddings)]
        if isinstance(model, PretrainingModel) and model.next_sentence:
            first = hidden.index_select(0, tokens.first_positions)
            values.append(model.next_sentence_head(model.pooler(first), None))
    elif isinstance(model, SpanPredictor):
        values = list(model(tokens).unbind(dim=-1))
    else:
        logits = model(tokens)
        values = [logits[:, None] if isinstance(model, SequenceRegressor) else logits]
    return dict(zip(output_names(model), values, strict=True))


def _vectors(model: Model, hidden: Tensor, tokens: RaggedBatch) -> Tensor:
    """[B, D], as `bc.embed` makes them."""
    how = model.embedding
    assert how is not None
    is_cls = how.pooling == "cls"
    vectors = hidden.index_select(0, tokens.first_positions) if is_cls else tokens.mean(hidden)
    is_unit = how.normalize or isinstance(model, SentenceEncoder)
    return F.normalize(vectors, dim=-1) if is_unit else vectors


def export_onnx(model: Model, path: Path | str) -> None:
    """Write `model` as the ONNX file `path`, for any number of sequences of any length it reads.

    Inputs are `input_ids`, `attention_mask` and `token_type_ids`, int64 [batch, tokens] with
    padding on the right, of multiple choice [batch, choices, tokens]. Outputs have the names that
    `transformers` and Optimum give them: `logits`, `start_logits` and `end_logits`, or
    `last_hidden_state` and, of an encoder that says how it makes vectors, `sentence_embedding`.
    Weights are float32, in the file itself. Raises ValueError for a head that cannot be written and
    for more weights than an ONNX file holds, and ModuleNotFoundError without the extra `onnx`.
    """
    from onnxscript import ir  # torch's own message names no extra of ours

    num_bytes = sum(each.nbytes for each in model.state_dict().values())
    if num_bytes > MOST_BYTES:
        raise ValueError(
            f"an ONNX file holds at most 2 GiB of weights, got {num_bytes / 2**30:.1f} GiB; export "
            "the model for transformers"
        )
    padded = PaddedModel(model).eval()
    batch, choices = Dim("batch_size"), Dim("num_choices")
    tokens = Dim("sequence_length", max=model.config.max_position_embeddings)
    is_choice = isinstance(model, MultipleChoice)
    shape = _TRACED if is_choice else (_TRACED[0], _TRACED[2])
    axes = (batch, choices, tokens) if is_choice else (batch, tokens)
    rows = tuple(torch.ones(shape, dtype=torch.int64, device=model.device) for _ in INPUTS)
    with torch.no_grad(), _quiet():
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
    ir.save(written.model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block without the messages of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def encoder_alone(model: Model, pooling: str) -> EncoderModel:
    """The encoder of `model`, which makes vectors by `pooling`, `mean` or `cls`.

    It shares the weights. Raises ValueError for another pooling.
    """
    with torch.device("meta"):  # its own weights are replaced
        alone = EncoderModel(model.config, pooler=False)
    alone.encoder, alone.embedding = model.encoder, embedding_of(model, pooling)
    return alone


def write_onnx_folder(draft: Path, model: Model, tokenizer: WordPieceTokenizer) -> None:
    """Write `model.onnx`, the tokenizer and the settings of `model` into the folder `draft`.

    Raises ValueError and ModuleNotFoundError as `export_onnx` does.
    """
    export_onnx(model, draft / MODEL_FILE)
    config = model.config
    write_json(draft / "config.json", their_config(model, architecture_of(model), tokenizer))
    tokenizer.save(draft, max_tokens=config.max_position_embeddings)
    how = model.embedding
    if isinstance(model, EncoderModel | SentenceEncoder) and how is not None:
        how = replace(how, normalize=how.normalize or isinstance(model, SentenceEncoder))
        write_embedding(draft, how, config.hidden_size, config.max_position_embeddings)


class Comparison(NamedTuple):
    """How far an ONNX file is from its model."""

    difference: float  # the largest of any output's value
    magnitude: float  # the largest value of the model's own outputs


class OnnxModel:
    """The ONNX file `path`, run by ONNX Runtime on the CPU; `model` is what it was made of.

    With `num_threads` 0 it has a thread for each core.
    """

    def __init__(self, path: Path | str, model: Model, num_threads: int = 0) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        self.model = model
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def outputs(self, tokens: RaggedBatch) -> dict[str, Tensor]:
        """What the file gives for `tokens`, padded on the way: as `outputs_of` the model.

        Of multiple choice all sequences are choices of one question.
        """
        is_choice = isinstance(self.model, MultipleChoice)
        is_token = torch.ones_like(tokens.input_ids)
        rows = [
            tokens.padded(values, 0).numpy()
            for values in (tokens.input_ids, is_token, tokens.token_type_ids)
        ]
        rows = [each[None] for each in rows] if is_choice else rows
        names = output_names(self.model)
        arrays = self.session.run(list(names), dict(zip(INPUTS, rows, strict=True)))
        outputs = {name: torch.from_numpy(each) for name, each in zip(names, arrays, strict=True)}
        if is_choice:
            return {"logits": outputs["logits"][0]}
        return {
            name: values.flatten(0, 1)[tokens.padded_positions]
            if is_of_tokens(self.model, name)
            else values
            for name, values in outputs.items()
        }

    @torch.inference_mode()
    def compare(self, batches: Iterable[RaggedBatch]) -> Comparison:
        """How far the file's outputs for all `batches` are from the model's."""
        difference = magnitude = 0.0
        for tokens in batches:
            outputs = self.outputs(tokens)
            for name, ours in outputs_of(self.model, tokens).items():
                far = float((outputs[name] - ours).abs().max())
                difference = max(difference, far if np.isfinite(far) else np.inf)
                magnitude = max(magnitude, float(ours.abs().max()))
        return Comparison(difference, magnitude)
