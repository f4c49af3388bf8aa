"""An encoder whose vectors are close if texts mean the same.

N = pairs, K = texts that are known to fit none of them, B = sequences, D = hidden size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.config import EmbeddingConfig, EncoderConfig
from bert_core.model.encoder import squared_error_sum
from bert_core.model.pooling import pooled
from bert_core.model.task_models import TaskModel
from bert_core.ragged import RaggedBatch

SCALE = 20.0  # of cosines among which one is to be chosen (a temperature of 0.05)


class SentenceEncoder(TaskModel):
    """Texts as vectors of length 1, learned from pairs of them (Reimers and Gurevych, 2019).

    A batch holds N first texts, then N second ones, then K >= 0 more. [N] floats as labels are the
    target cosines of the pairs. With integers, among all second texts and the K more, the first
    text's own must be nearest (Henderson et al., 2017, section 4.4). They are [N] topics or [N, 2]
    numbers of first and second texts: second texts of pairs with the same topic, or the same first
    or second text, are left out.
    """

    head_name = "sentence_embedding"
    reads_every_token = True
    figures = ("loss",)

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embedding = EmbeddingConfig()

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, D] float32: each text's hidden states, pooled as `embedding` says, of length 1."""
        how = self.embedding or EmbeddingConfig()
        return F.normalize(pooled(self, tokens, how.pooling, dropout_key).float(), dim=-1)

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        num_pairs = len(labels)
        if len(answers) < 2 * num_pairs:
            raise ValueError(
                f"a batch of {num_pairs} pairs must hold at least {2 * num_pairs} texts, got "
                f"{len(answers)}"
            )
        first, second = answers[:num_pairs], answers[num_pairs:]
        if not labels.is_floating_point():
            return _choice_loss_sum(first, second, labels)
        return squared_error_sum((first * second[:num_pairs]).sum(dim=-1), labels)


def _choice_loss_sum(first: Tensor, second: Tensor, numbers: Tensor) -> Tensor:
    """Cross-entropy of choosing each first text's own second text, summed over the pairs."""
    num_pairs = len(numbers)
    numbers = numbers.view(num_pairs, -1)
    scores = SCALE * first @ second.T  # [N, N + K]
    own = torch.eye(num_pairs, dtype=torch.bool, device=numbers.device)
    is_alike = (numbers[:, None] == numbers[None, :]).any(dim=-1) & ~own
    is_alike = F.pad(is_alike, (0, len(second) - num_pairs))
    scores = scores.masked_fill(is_alike, float("-inf"))
    return F.cross_entropy(scores, torch.arange(num_pairs, device=numbers.device), reduction="sum")
