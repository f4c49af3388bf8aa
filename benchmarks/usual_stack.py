"""The usual stack, `transformers` and torch, as people use it and as one tunes it who knows it.

As people use it: the model's own forward pass on padded batches, torch's AdamW, clipping.

Tuned, and what it is worth on a CPU (`benchmarks/results/usual_stack_*.md`):
- No padding outside of attention. `transformers` packs sequences for flash attention only, which
  needs a GPU; its own way in is an attention function of one's own, registered by name. This one
  pads queries, keys and values to [B, S], asks `scaled_dot_product_attention`, and packs again.
- The vocabulary's logits at masked positions only: `BertModel`, then `BertPreTrainingHeads` on the
  hidden states gathered there.
- Fused AdamW, clipping by `foreach`, gradients set to None, the C library's blocks kept.
- Weights are cast once a step: autocast caches them within its block.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.memory import keep_freed_memory, return_freed_memory
from bert_core.batch import LabelledBatch, PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.hugging_face.tensors import to_hugging_face

PACKED_ATTENTION = "packed_sdpa"
SETTLING_STEPS = 8  # as many as our own loop takes before it keeps freed blocks


def their_config(ours: EncoderConfig, **settings: Any) -> Any:
    """The same encoder in the words of `transformers`."""
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


def load_ours(reference: nn.Module, model: nn.Module, task_head: str = "classifier") -> None:
    """Give the reference our weights; raises KeyError where one of its own is not among them."""
    tensors = to_hugging_face(dict(model.named_parameters()), task_head=task_head)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.copy_(tensors[name])


def pad(values: Tensor, lengths: tuple[int, ...], padding: int, size: int | None = None) -> Tensor:
    """[T] -> [B, S], S the longest of the batch unless a `size` is given."""
    rows = values.new_full((len(lengths), size or max(lengths)), padding)
    for row, part in zip(rows, values.split(lengths), strict=True):
        row[: len(part)] = part
    return rows


def padded(batch: PretrainingBatch, size: int | None = None) -> dict[str, Tensor]:
    """A pretraining batch as the model's own forward pass takes it."""
    tokens, next_sentence_labels = batch.tokens, batch.next_sentence_labels
    assert next_sentence_labels is not None
    labels = torch.full((tokens.num_tokens,), -100)
    labels[batch.masked_positions] = batch.masked_labels
    return {
        **padded_tokens(tokens, size),
        "labels": pad(labels, tokens.lengths, -100, size),
        "next_sentence_label": next_sentence_labels,
    }


def padded_tokens(tokens: RaggedBatch, size: int | None = None) -> dict[str, Tensor]:
    """Ids, segments and mask, [B, S] each."""
    return {
        "input_ids": pad(tokens.input_ids, tokens.lengths, 0, size),
        "token_type_ids": pad(tokens.token_type_ids, tokens.lengths, 0, size),
        "attention_mask": pad(torch.ones_like(tokens.input_ids), tokens.lengths, 0, size),
    }


def packed(tokens: RaggedBatch) -> dict[str, Any]:
    """What the encoder takes for one row of T tokens, and where its attention finds them."""
    lengths = torch.tensor(tokens.lengths)
    is_token = torch.arange(int(lengths.max())) < lengths[:, None]  # [B, S]
    places = is_token.flatten().nonzero().squeeze(1)  # [T]
    return {
        "input_ids": tokens.input_ids[None],
        "token_type_ids": tokens.token_type_ids[None],
        "position_ids": tokens.position_ids[None],
        "packing": None if bool(is_token.all()) else (is_token[:, None, None], places),
        "num_sequences": len(tokens.lengths),
    }


def register_packed_attention() -> str:
    """Make the packed attention known to `transformers`; returns its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, lambda **_: None)
    return PACKED_ATTENTION


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: tuple[Tensor, Tensor] | None,
    num_sequences: int,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values [1, H, T, K] -> [1, T, H, K], each sequence by itself."""
    rows = torch.stack((query[0], key[0], value[0])).transpose(1, 2)  # [3, T, H, K]
    mask = None
    if packing is not None:
        mask, index = packing
        room = rows.new_zeros(3, num_sequences * mask.shape[-1], *rows.shape[2:])
        rows = room.index_copy(1, index, rows)
    query, key, value = rows.unflatten(1, (num_sequences, -1)).transpose(2, 3).unbind(0)
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    flat = mixed.transpose(1, 2).flatten(0, 1)  # [B * S, H, K]
    return (flat if packing is None else flat[index])[None], None


class Pretraining(nn.Module):
    """`BertForPreTraining` with both losses, the vocabulary read at masked positions only."""

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
        """`first` and `masked` are rows of the hidden states, padding counted where there is."""
        bert, heads = self.reference.bert, self.reference.cls
        hidden = bert(**inputs).last_hidden_state.flatten(0, 1)
        pooled = bert.pooler(hidden[first][:, None])
        loss = F.cross_entropy(heads.predictions(hidden[masked]).float(), labels)
        pairs = F.cross_entropy(heads.seq_relationship(pooled).float(), next_sentence_labels)
        return loss + pairs

    def arguments(self, batch: PretrainingBatch) -> tuple[Any, ...]:
        """What `forward` takes for a batch, packed."""
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
        """What `forward` takes for a batch, packed."""
        return packed(batch.tokens), batch.tokens.first_positions, batch.labels


class Steps:
    """One optimizer step after the other over a few batches, in the usual words."""

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
    """Steps of the tuned stack on the CPU; compiled for any lengths where asked."""
    model.train()
    forward = torch.compile(model, dynamic=True) if compiled else model
    losses = [partial(forward, *model.arguments(batch)) for batch in batches]
    return Steps(model, losses, learning_rate=learning_rate, bf16=bf16, tuned=True)
