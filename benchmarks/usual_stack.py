"""The usual stack, `transformers` and torch, as people use it and as an expert tunes it.

As people use it: the model's own forward pass on padded batches, torch's AdamW, clipping. Tuned:

- no padding outside of attention (`benchmarks/reference_batches.py`);
- the vocabulary's logits at masked positions only: `BertModel`, then `BertPreTrainingHeads` on the
  hidden states gathered there;
- fused AdamW, clipping by `foreach`, gradients set to None, freed memory kept, as in ours;
- weights cast once per step: autocast caches them within its block.

`benchmarks/tunings.py` compares this choice with padded batches and with torch.compile.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.reference_batches import packed, register_packed_attention, static_arguments
from bert_core.backends.context import keep_freed_memory, return_freed_memory
from bert_core.batch import LabelledBatch, PretrainingBatch
from bert_core.config import EncoderConfig
from bert_core.hugging_face.tensors import to_hugging_face

# Packed batches are compiled for any length, padded ones, whose shapes are all alike, for theirs.
TUNINGS = ("packed", "padded", "packed, compiled", "padded, compiled")
SETTLING_STEPS = 8  # as many as our own loop takes before it keeps freed memory


def their_config(ours: EncoderConfig, **settings: Any) -> Any:
    """The same encoder as a configuration of `transformers`."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_attention_heads,
        intermediate_size=ours.intermediate_size,
        max_position_embeddings=ours.max_position_embeddings,
        hidden_dropout_prob=ours.hidden_dropout,
        attention_probs_dropout_prob=ours.attention_dropout,
        **settings,
    )


def load_ours(reference: nn.Module, model: nn.Module) -> None:
    """Copy our weights to the reference; raises KeyError if one of its parameters is missing."""
    tensors = to_hugging_face(dict(model.named_parameters()))
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.copy_(tensors[name])


class Pretraining(nn.Module):
    """`BertForPreTraining` with both losses and logits at masked positions only."""

    def __init__(self, config: Any) -> None:
        from transformers import BertForPreTraining

        super().__init__()
        self.reference = BertForPreTraining(config)

    def forward(
        self,
        inputs: dict[str, Any],
        first: Tensor,
        masked: Tensor,
        labels: Tensor,
        next_sentence_labels: Tensor,
    ) -> Tensor:
        """`first` and `masked` are rows of the hidden states, counting any padding."""
        bert, heads = self.reference.bert, self.reference.cls
        hidden = bert(**inputs).last_hidden_state.flatten(0, 1)
        pooled = bert.pooler(hidden[first][:, None])
        loss = F.cross_entropy(heads.predictions(hidden[masked]).float(), labels)
        pairs = F.cross_entropy(heads.seq_relationship(pooled).float(), next_sentence_labels)
        return loss + pairs

    def arguments(self, batch: PretrainingBatch) -> tuple[Any, ...]:
        """The arguments of `forward` for a batch, packed."""
        first, masked = batch.tokens.first_positions, batch.masked_positions
        labels = batch.masked_labels, batch.next_sentence_labels
        return packed(batch.tokens), first, masked, *labels


class Classification(nn.Module):
    """`BertForSequenceClassification` with its loss, on packed tokens."""

    def __init__(self, config: Any) -> None:
        from transformers import BertForSequenceClassification

        super().__init__()
        self.reference = BertForSequenceClassification(config)

    def forward(self, inputs: dict[str, Any], first: Tensor, labels: Tensor) -> Tensor:
        """`first` are rows of the hidden states."""
        bert = self.reference.bert
        hidden = bert(**inputs).last_hidden_state.flatten(0, 1)
        pooled = self.reference.dropout(bert.pooler(hidden[first][:, None]))
        return F.cross_entropy(self.reference.classifier(pooled).float(), labels)

    def arguments(self, batch: LabelledBatch) -> tuple[Any, ...]:
        """The arguments of `forward` for a batch, packed."""
        return packed(batch.tokens), batch.tokens.first_positions, batch.labels


class Steps:
    """Optimizer steps over a few batches, as the usual training loop."""

    def __init__(
        self,
        model: nn.Module,
        losses: Sequence[Callable[[], Tensor]],
        *,
        learning_rate: float,
        bf16: bool,
        tuned: bool,
        device: str = "cpu",
    ) -> None:
        self.parameters = list(model.parameters())
        self.losses, self.bf16, self.tuned, self.device = losses, bf16, tuned, device
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=learning_rate, weight_decay=0.01, fused=tuned or None
        )
        self.num_steps = 0
        if tuned:
            return_freed_memory()

    def __call__(self) -> None:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = self.losses[self.num_steps % len(self.losses)]()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=self.tuned or None)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        if self.tuned and self.num_steps == SETTLING_STEPS:
            keep_freed_memory()


def tuned_steps(
    model: Pretraining | Classification,
    batches: Sequence[Any],
    *,
    learning_rate: float,
    bf16: bool,
    compiled: bool,
) -> Steps:
    """Steps of the tuned stack on the CPU; compiled for any lengths if `compiled`."""
    model.train()
    forward = torch.compile(model, dynamic=True) if compiled else model
    losses = [partial(forward, *model.arguments(batch)) for batch in batches]
    return Steps(model, losses, learning_rate=learning_rate, bf16=bf16, tuned=True)


def tuned_pretraining(
    ours: EncoderConfig, batches: Sequence[PretrainingBatch], tuning: str, *, bf16: bool
) -> Steps:
    """Pretraining steps of the tuned stack on the CPU, in one of `TUNINGS`."""
    compiled = tuning.endswith("compiled")
    if tuning.startswith("packed"):
        packed = Pretraining(their_config(ours, attn_implementation=register_packed_attention()))
        return tuned_steps(packed, batches, learning_rate=1e-4, bf16=bf16, compiled=compiled)
    model = Pretraining(their_config(ours, attn_implementation="sdpa")).train()
    forward = torch.compile(model, dynamic=False) if compiled else model
    longest = max(batch.tokens.max_seqlen for batch in batches)
    most = max(batch.masked_positions.numel() for batch in batches)
    losses = [partial(forward, *static_arguments(batch, longest, most, "cpu")) for batch in batches]
    return Steps(model, losses, learning_rate=1e-4, bf16=bf16, tuned=True)
