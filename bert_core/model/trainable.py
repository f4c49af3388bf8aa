"""The interface of every model: an encoder, a head, losses as sums; sequences as vectors.

A model maps a `RaggedBatch` to logits when called. Dropout happens where a `dropout_key` is given.
T = ragged tokens, B = sequences, D = hidden size.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from bert_core.backends.context import PackedWeights, Precision, compute_dtype, computing
from bert_core.backends.dropout import DropoutKey
from bert_core.batch import RaggedBatch
from bert_core.config import EmbeddingConfig, EncoderConfig
from bert_core.model.encoder import Encoder

PACKED_TOKENS = 1024  # for fewer, packing all matrices once costs more than it saves


class Sum(NamedTuple):
    """A sum over `num_items` items; their quotient is the figure."""

    total: Tensor  # [] float32
    num_items: int


Sums = dict[str, Sum]


class Model(nn.Module):
    """An encoder with a head that has a name."""

    head_name: ClassVar[str]

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        # How texts become vectors with this encoder, if known; saved with the model.
        self.embedding: EmbeddingConfig | None = None
        self._packed: dict[torch.dtype, PackedWeights] | None = None

    def head_settings(self) -> dict[str, Any]:
        """What is needed besides the encoder's config to build this model again."""
        return {}

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.encoder.embeddings.token.device

    def inference(self, precision: Precision, num_tokens: int = 0) -> AbstractContextManager[None]:
        """A block in which this thread computes in `precision` and asks for no gradient.

        Weights must not change in it. The CPU backend packs them if `num_tokens`, which will be
        read in the block, are enough. Raises ValueError for an unknown precision.
        """
        dtype = compute_dtype(precision, self.device)
        if self._packed is not None:
            return computing(dtype, packed=self._packed.setdefault(dtype, PackedWeights()))
        packed = PackedWeights() if num_tokens >= PACKED_TOKENS else None
        return computing(dtype, packed=packed)

    def pack(self) -> Self:
        """Freeze all weights and keep them packed, and so twice, from one inference to the next.

        A short text is answered up to twice as fast on a CPU. `requires_grad_(True)` undoes it.
        Changes of weights through `.data` are not seen: call it again after them.
        """
        self.requires_grad_(False)
        self._packed = {}
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As torch has it; weights that may change are not kept packed."""
        if requires_grad:
            self._packed = None
        return super().requires_grad_(requires_grad)


class TrainableModel(Model):
    """A model with losses, which it gives as sums over the items of a batch."""

    loss_names: tuple[str, ...] = ("label",)
    figures: ClassVar[tuple[str, ...]] = ("loss", "accuracy")  # of each loss, in an evaluation

    @property
    def figure_names(self) -> tuple[str, ...]:
        """The names of `evaluation_sums`: `<name>_loss` and, for classes, `<name>_accuracy`."""
        return tuple(f"{loss}_{figure}" for loss in self.loss_names for figure in self.figures)

    @abstractmethod
    def loss_sums(self, batch: Any, dropout_key: DropoutKey | None = None) -> Sums:
        """Each loss of `batch`, summed over the items it counts.

        Raises ValueError for a batch that lacks what the model needs or that it cannot read.
        """

    @abstractmethod
    def evaluation_sums(self, batch: Any) -> Sums:
        """Sums of the losses and of correct answers, by `figure_names`; raises as `loss_sums`.

        Without gradients or dropout; they add up over batches and ranks to exact figures.
        """


def checked_labels(num_labels: int, labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of `num_labels` classes; raises ValueError if they are not as many, or alike."""
    if labels is None:
        return None
    if len(labels) != num_labels or len(set(labels)) != num_labels:
        raise ValueError(
            f"labels must be {num_labels} different names, got {len(labels)}: {list(labels)}"
        )
    return tuple(labels)


def mean_of_tokens(hidden: Tensor, tokens: RaggedBatch) -> Tensor:
    """[T, D] -> [B, D] the mean of each sequence's tokens, [CLS] and [SEP] among them."""
    return tokens.mean(hidden.float()).to(hidden.dtype)


def pooled(
    model: Model, tokens: RaggedBatch, pooling: str, dropout_key: DropoutKey | None = None
) -> Tensor:
    """[B, D] float32 of the hidden states of `model`: their mean, or with `cls` that of [CLS]."""
    if pooling == "cls":
        return model.encoder(tokens, dropout_key, tokens.first_positions).float()
    return tokens.mean(model.encoder(tokens, dropout_key).float())
