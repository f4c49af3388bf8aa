"""A model as `transformers` calls it: rows padded to one length in, whole tensors out.

The encoder, the heads and the plain backend are those of ragged batches; only the batch differs.

B = sequences, S = tokens of each, padding among them, T = B * S, C = choices of a question, D =
hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.operations import use_backend
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
from bert_core.model.pooling import pooled_tokens, pooler_of
from bert_core.model.task_models import TextLabeller
from bert_core.ragged import RaggedBatch

INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
# Outputs with a value for each token; the others have one for each sequence.
OF_TOKENS: Final = ("last_hidden_state", "start_logits", "end_logits")


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

    def reduced(self, values: Tensor, how: Literal["sum", "mean", "max"]) -> Tensor:
        is_token = self.is_token[:, :, None]
        rows = values.unflatten(0, self.is_token.shape)
        if how == "max":
            return rows.masked_fill(~is_token, -torch.inf).amax(dim=1)
        sums = (rows * is_token).sum(dim=1)
        return sums if how == "sum" else sums / is_token.sum(dim=1)


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
        found = [hidden := model.encoder(tokens)]
        if model.embedding is not None:
            found.append(_vectors(model, hidden, tokens))
    elif isinstance(model, PretrainingModel | LanguageModel):
        hidden = model.encoder(tokens)
        found = [model.vocabulary_head(hidden, model.encoder.embeddings)]
        if isinstance(model, PretrainingModel) and model.next_sentence:
            first = hidden.index_select(0, tokens.first_positions)
            found.append(model.next_sentence_head(model.pooler(first), None))
    elif isinstance(model, SpanPredictor):
        found = list(model(tokens).unbind(dim=-1))
    else:
        logits = model(tokens)
        found = [logits[:, None] if isinstance(model, SequenceRegressor) else logits]
    return dict(zip(output_names(model), found, strict=True))


def answer_of(model: Model, outputs: dict[str, Tensor], *positions: Any) -> Any:
    """What calling `model` returns, made of its `outputs_of`."""
    if isinstance(model, SentenceEncoder):
        return outputs["sentence_embedding"]
    if isinstance(model, EncoderModel):
        return outputs["last_hidden_state"]
    if isinstance(model, SpanPredictor):
        return torch.stack((outputs["start_logits"], outputs["end_logits"]), dim=-1)
    logits = outputs["logits"]
    if isinstance(model, SequenceRegressor):
        return logits[:, 0]
    if isinstance(model, PretrainingModel):
        return logits[positions[0]], outputs.get("seq_relationship_logits")
    return logits[positions[0]] if isinstance(model, LanguageModel) else logits


def _vectors(model: Model, hidden: Tensor, tokens: RaggedBatch) -> Tensor:
    """[B, D], as `bert_core.inference.embed` makes them."""
    how = model.embedding
    assert how is not None
    if how.pooling in ("cls", "pooled"):
        first = hidden.index_select(0, tokens.first_positions)
        vectors = first if how.pooling == "cls" else pooler_of(model)(first)
    else:
        vectors = pooled_tokens(hidden, tokens, how.pooling)
    is_unit = how.normalize or isinstance(model, SentenceEncoder)
    return F.normalize(vectors.float(), dim=-1) if is_unit else vectors.float()
