"""Changes to a model before its optimizer is built: freezing, resizing, checkpointing.

V = vocabulary, S = positions, D = hidden size.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bert_core.config import EncoderConfig
from bert_core.model.layers import sinusoids, truncated_normal_
from bert_core.model.trainable import Model


def freeze(
    model: Model, *, embeddings: bool = False, layers: int = 0, matrices: bool = False
) -> tuple[str, ...]:
    """Freeze parts of the encoder and return the names of all frozen parameters.

    Args:
        model: what is to be trained, before its optimizer is built.
        embeddings: the tables and their normalization. In pretraining the output layer shares the
            token embeddings and is frozen with them.
        layers: how many of the lowest layers; with `embeddings` and all layers only the head, with
            its pooler, is trained.
        matrices: every matrix of the encoder, so that only its biases and normalizations are
            trained (BitFit; Ben Zaken et al., 2022).

    A frozen parameter keeps every bit and costs no gradient; dropout does not change. Undo it with
    `model.requires_grad_(True)`. Raises ValueError if the encoder has fewer layers, nothing is to
    be frozen, or the model already has an optimizer.
    """
    num_layers = model.config.num_layers
    if not 0 <= layers <= num_layers:
        raise ValueError(f"layers must lie in [0, {num_layers}], got {layers}")
    if not (embeddings or layers or matrices):
        raise ValueError("nothing to freeze: pass embeddings=True, layers=… or matrices=True")
    _check_no_optimizer(model)
    prefixes = tuple(f"encoder.layers.{index}." for index in range(layers))
    prefixes += ("encoder.embeddings.",) if embeddings else ()
    for name, parameter in model.named_parameters():
        is_matrix = name.startswith("encoder.") and parameter.ndim > 1
        if name.startswith(prefixes) or (matrices and is_matrix):
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
def resize_positions(
    model: Model, num_positions: int, *, new_rows: Literal["repeated", "random"] = "repeated"
) -> None:
    """Let `model` read sequences of up to `num_positions` tokens.

    Args:
        model: what is changed, before its optimizer is built.
        num_positions: fewer cut the table's end off; texts that fit give what they gave before.
        new_rows: of a learned table that grows. "repeated" copies the old rows in order, so that
            heads that attend a few tokens away work at once (Beltagy et al., 2020, section 5).
            "random" draws them as a new model does, for a long continued pretraining. Existing
            rows never change; interpolating them would move every text to other positions.

    Sinusoidal positions are computed, in any number. Raises ValueError for less than one position,
    for other `new_rows`, and if the model has an optimizer already.
    """
    _check(num_positions, "num_positions", new_rows, ("repeated", "random"))
    _check_no_optimizer(model)
    embeddings = model.encoder.embeddings
    table = embeddings.position  # [S, D]
    if model.config.positions == "sinusoidal":
        computed = sinusoids(num_positions, model.config.hidden_size).to(table)
        embeddings.register_buffer("position", computed, persistent=False)
    else:
        num_new = max(0, num_positions - len(table))
        if new_rows == "repeated":
            rows = table[torch.arange(num_new, device=table.device) % len(table)]
        else:
            rows = _random_rows(model, table, num_new)
        embeddings.position = _resized(table, rows, num_positions)
    _set_config(model, replace(model.config, max_position_embeddings=num_positions))
    if model.embedding is not None and (model.embedding.max_tokens or 0) > num_positions:
        model.embedding = replace(model.embedding, max_tokens=num_positions)


@torch.no_grad()
def resize_vocabulary(
    model: Model, num_tokens: int, *, new_rows: Literal["mean", "random"] = "mean"
) -> None:
    """Let `model` read the ids below `num_tokens`, and predict them if it predicts tokens.

    Args:
        model: what is changed, before its optimizer is built.
        num_tokens: fewer cut the last tokens off; the others keep their ids and numbers.
        new_rows: "mean" starts each new token as the mean of all, output bias included, so that
            a trained model gives it an average likelihood and predicts the others about as before;
            random rows may be likelier than any (Hewitt, 2021). "random" draws them as a new model
            does.

    Raises ValueError for less than one token, for other `new_rows`, and if the model has an
    optimizer already.
    """
    _check(num_tokens, "num_tokens", new_rows, ("mean", "random"))
    _check_no_optimizer(model)
    embeddings = model.encoder.embeddings
    table = embeddings.token  # [V, D]
    num_new = max(0, num_tokens - len(table))
    if new_rows == "mean":
        rows = table.mean(dim=0).expand(num_new, -1)
    else:
        rows = _random_rows(model, table, num_new)
    embeddings.token = _resized(table, rows, num_tokens)
    head = getattr(model, "vocabulary_head", None)
    if head is not None:
        likely = head.bias.mean() if new_rows == "mean" else head.bias.new_zeros(())
        head.bias = _resized(head.bias, likely.expand(num_new), num_tokens)
    _set_config(model, replace(model.config, vocab_size=num_tokens))


def _resized(table: nn.Parameter, new_rows: Tensor, size: int) -> nn.Parameter:
    """The first `size` rows of the table and what follows it; frozen if the table is."""
    rows = torch.cat((table[:size], new_rows))
    return nn.Parameter(rows, requires_grad=table.requires_grad)


def _random_rows(model: Model, table: Tensor, num_rows: int) -> Tensor:
    """[num_rows, D] from torch's generator of the CPU, the same numbers on any device."""
    rows = torch.empty(num_rows, table.shape[1])
    truncated_normal_(rows, model.config.initializer_range)
    return rows.to(table)


def _set_config(model: Model, config: EncoderConfig) -> None:
    """In every module that holds the old one."""
    old, modules = model.config, list[Any](model.modules())
    for module in modules:
        if getattr(module, "config", None) == old:
            module.config = config


def _check(size: int, name: str, new_rows: str, known: tuple[str, ...]) -> None:
    if size < 1:
        raise ValueError(f"{name} must be at least 1, got {size}")
    if new_rows not in known:
        raise ValueError(f"new_rows must be {' or '.join(known)}, got {new_rows!r}")


def _check_no_optimizer(model: Model) -> None:
    if any(parameter.grad is not None for parameter in model.parameters()):
        raise ValueError(
            "the model has gradients, so its optimizer was built already; freeze and resize a new "
            "model, then build its optimizer"
        )
