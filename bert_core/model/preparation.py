"""Changes to a model before its optimizer is built: freezing, resizing, checkpointing.

V = vocabulary, S = positions, D = hidden size.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bert_core.config import EncoderConfig, check_whole
from bert_core.model.layers import sinusoids
from bert_core.model.trainable import Model


def freeze(model: Model, *, embeddings: bool = False, layers: int = 0) -> tuple[str, ...]:
    """Freeze parts of the encoder and return the names of all frozen parameters.

    Args:
        model: what is to be trained, before its optimizer is built.
        embeddings: the tables and their normalization. In pretraining the output layer shares the
            token embeddings and is frozen with them.
        layers: how many of the lowest layers; with `embeddings` and all layers only the head, with
            its pooler, is trained.

    A frozen parameter keeps every bit and costs no gradient; dropout does not change. Undo it with
    `model.requires_grad_(True)`. Raises ValueError if the encoder has fewer layers, nothing is to
    be frozen, or the model already has an optimizer.
    """
    num_layers = model.config.num_layers
    if not 0 <= layers <= num_layers:
        raise ValueError(f"layers must lie in [0, {num_layers}], got {layers}")
    if not (embeddings or layers):
        raise ValueError("nothing to freeze: pass embeddings=True or layers=…")
    _check_no_optimizer(model)
    prefixes = tuple(f"encoder.layers.{index}." for index in range(layers))
    prefixes += ("encoder.embeddings.",) if embeddings else ()
    for name, parameter in model.named_parameters():
        if name.startswith(prefixes):
            parameter.requires_grad_(False)
    return tuple(name for name, p in model.named_parameters() if not p.requires_grad)


def checkpoint_activations(model: Model, num_layers: int) -> None:
    """Activation checkpointing of the `num_layers` lowest layers; 0 undoes it.

    They keep only their input, and the backward pass computes them again, a third more work, with
    the same dropout: gradients are the same bit for bit (Chen et al., "Training Deep Nets with
    Sublinear Memory Cost", 2016). Raises ValueError if the encoder has fewer layers.
    """
    if not 0 <= num_layers <= model.config.num_layers:
        raise ValueError(f"num_layers must lie in [0, {model.config.num_layers}], got {num_layers}")
    model.encoder.num_checkpointed_layers = num_layers


@torch.no_grad()
def resize_positions(model: Model, num_positions: int) -> None:
    """Let `model` read sequences of up to `num_positions` tokens.

    Args:
        model: what is changed, before its optimizer is built.
        num_positions: fewer cut the table's end off; texts that fit give what they gave before.

    A learned table that grows repeats its rows in order, so that heads that attend a few tokens
    away work at once (Beltagy et al., 2020, section 5). Sinusoidal positions are computed, in any
    number. Raises ValueError for less than one position, and if the model has an optimizer already.
    """
    check_whole("num_positions", num_positions, 1)
    _check_no_optimizer(model)
    embeddings = model.encoder.embeddings
    table = embeddings.position  # [S, D]
    if model.config.positions == "sinusoidal":
        computed = sinusoids(num_positions, model.config.hidden_size).to(table)
        embeddings.register_buffer("position", computed, persistent=False)
    else:
        num_new = max(0, num_positions - len(table))
        rows = table[torch.arange(num_new, device=table.device) % len(table)]
        embeddings.position = _resized(table, rows, num_positions)
    _set_config(model, replace(model.config, max_position_embeddings=num_positions))
    if model.embedding is not None and (model.embedding.max_tokens or 0) > num_positions:
        model.embedding = replace(model.embedding, max_tokens=num_positions)


@torch.no_grad()
def resize_vocabulary(model: Model, num_tokens: int) -> None:
    """Let `model` read the ids below `num_tokens`, and predict them if it predicts tokens.

    Args:
        model: what is changed, before its optimizer is built.
        num_tokens: fewer cut the last tokens off; the others keep their ids and numbers.

    Each new token starts as the mean of all, output bias included, so that a trained model gives it
    an average likelihood and predicts the others about as before; random rows may be likelier than
    any (Hewitt, 2021). Raises ValueError for less than one token, and if the model has an optimizer
    already.
    """
    check_whole("num_tokens", num_tokens, 1)
    _check_no_optimizer(model)
    embeddings = model.encoder.embeddings
    table = embeddings.token  # [V, D]
    num_new = max(0, num_tokens - len(table))
    rows = table.mean(dim=0).expand(num_new, -1)
    embeddings.token = _resized(table, rows, num_tokens)
    head = getattr(model, "vocabulary_head", None)
    if head is not None:
        head.bias = _resized(head.bias, head.bias.mean().expand(num_new), num_tokens)
    _set_config(model, replace(model.config, vocab_size=num_tokens))


def _resized(table: nn.Parameter, new_rows: Tensor, size: int) -> nn.Parameter:
    """The first `size` rows of the table and what follows it; frozen if the table is."""
    rows = torch.cat((table[:size], new_rows))
    return nn.Parameter(rows, requires_grad=table.requires_grad)


def _set_config(model: Model, config: EncoderConfig) -> None:
    """In every module that holds the old one."""
    old, modules = model.config, list[Any](model.modules())
    for module in modules:
        if getattr(module, "config", None) == old:
            module.config = config


def _check_no_optimizer(model: Model) -> None:
    if any(parameter.grad is not None for parameter in model.parameters()):
        raise ValueError(
            "the model has gradients, so its optimizer was built already; freeze and resize a new "
            "model, then build its optimizer"
        )
