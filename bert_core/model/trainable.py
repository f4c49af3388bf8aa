"""What every model promises: an encoder, a head, and sums that add up.

A model maps a `RaggedBatch` to logits when called. Dropout happens where `keys` are given.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from bert_core.backends.cpu.dropout import DropoutKeys
from bert_core.config import EncoderConfig
from bert_core.model.encoder import Encoder
from bert_core.model.losses import cross_entropy_sum, num_correct


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

    def head_settings(self) -> dict[str, Any]:
        """What beside the encoder's config is needed to build this model again."""
        return {}


class TrainableModel(Model):
    """A model with losses, which it gives as sums over the items of a batch."""

    loss_names: tuple[str, ...] = ("label",)

    @abstractmethod
    def loss_sums(self, batch: Any, keys: DropoutKeys | None = None) -> Sums:
        """Each loss of `batch`, summed over the items it counts."""

    @abstractmethod
    def evaluation_sums(self, batch: Any) -> Sums:
        """Sums of the losses (`<name>_loss`) and of correct answers (`<name>_accuracy`).

        Without gradients or dropout; they add up over batches and ranks to exact figures.
        """


def classification_sums(name: str, logits: Tensor, labels: Tensor, count: int) -> Sums:
    """Loss and number of correct answers of `logits` [N, C] for `labels` [N]."""
    return {
        f"{name}_loss": Sum(cross_entropy_sum(logits, labels), count),
        f"{name}_accuracy": Sum(num_correct(logits, labels).float(), count),
    }


def checked_labels(num_labels: int, labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of `num_labels` classes, refused where their number differs."""
    if labels is None:
        return None
    if len(labels) != num_labels or len(set(labels)) != num_labels:
        raise ValueError(
            f"labels must be {num_labels} different names, got {len(labels)}: {list(labels)}"
        )
    return tuple(labels)
