"""How many bytes a training step needs at its peak, said before it is taken."""

from dataclasses import dataclass, fields

import torch

from bert_core.batch import Batch, PretrainingBatch
from bert_core.config import EncoderConfig
from bert_core.model.activation_memory import FLOAT32_BYTES, Activations, Backend
from bert_core.model.catalogue import LanguageModel, TrainableModel
from bert_core.model.forward_memory import worst_lengths

_BACKENDS = ("cpu", "plain", "flash")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes that are there together when a step needs the most."""

    weights: int
    gradients: int
    optimizer: int
    compute_copies: int  # of the matrices, in a lower precision
    activations: int  # kept for the backward pass
    logits: int  # over the vocabulary
    working: int  # what comes and goes while these are there

    @property
    def peak(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def step_memory(
    config: EncoderConfig,
    *,
    num_tokens: int,
    longest: int,
    num_sequences: int | None = None,
    num_predicted: int = 0,
    num_read: int | None = None,
    num_parameters: int | None = None,
    num_frozen: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    checkpointed_layers: int = 0,
    optimizer_buffers: float = 2,
    backend: Backend = "cpu",
) -> StepMemory:
    """The bytes that a step needs at its peak; several micro-batches need what the largest does.

    Args:
        config: the encoder.
        num_tokens: T, of the micro-batch.
        longest: S, tokens of its longest sequence.
        num_sequences: B; None: all are as long, up to the last one. Of the lengths that fit T, S
            and B those are taken that need the most: `batch_memory` knows them.
        num_predicted: M, tokens predicted over the vocabulary; 0 for other tasks.
        num_read: tokens whose last hidden state is read, such as one a text and those predicted;
            None for all.
        num_parameters: of the whole model; None: of the encoder, its pooler and, where tokens are
            predicted, the vocabulary head.
        num_frozen: parameters among these that are not trained.
        dtype: in which layers compute.
        checkpointed_layers: the lowest layers that keep their input alone (activation
            checkpointing).
        optimizer_buffers: float32 numbers that the optimizer keeps a parameter; AdamW keeps two, an
            average of the weights is one more, a rank among many may hold a share.
        backend: "cpu"; "plain", whose autograd keeps more; "flash", plain with attention's
            probabilities never there.

    Raises ValueError for numbers that are impossible.
    """
    return _memory(
        config,
        worst_lengths(num_tokens, longest, num_sequences),
        num_predicted=num_predicted,
        num_read=num_tokens if num_read is None else num_read,
        num_parameters=num_parameters,
        num_frozen=num_frozen,
        dtype=dtype,
        checkpointed_layers=checkpointed_layers,
        optimizer_buffers=optimizer_buffers,
        backend=backend,
    )


def _memory(
    config: EncoderConfig,
    lengths: tuple[int, ...],
    *,
    num_predicted: int,
    num_read: int,
    num_parameters: int | None,
    num_frozen: int,
    dtype: torch.dtype,
    checkpointed_layers: int,
    optimizer_buffers: float,
    backend: Backend,
) -> StepMemory:
    _refuse_impossible(config, sum(lengths), num_predicted, num_read, checkpointed_layers)
    if backend not in _BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(_BACKENDS)}, got {backend!r}")
    way = Activations(
        config=config,
        lengths=lengths,
        num_read=num_read,
        num_predicted=num_predicted,
        checkpointed_layers=checkpointed_layers,
        size=dtype.itemsize,
        backend=backend,
    )
    worst = max(way.phases(), key=sum)
    if num_parameters is None:
        num_parameters = encoder_parameters(config, with_vocabulary=num_predicted > 0)
    num_trained = num_parameters - num_frozen
    is_copied = dtype.itemsize < FLOAT32_BYTES
    return StepMemory(
        weights=FLOAT32_BYTES * num_parameters,
        gradients=FLOAT32_BYTES * num_trained,
        optimizer=round(FLOAT32_BYTES * optimizer_buffers * num_trained),
        compute_copies=dtype.itemsize * num_parameters if is_copied else 0,
        activations=worst.activations,
        logits=worst.logits,
        working=worst.working,
    )


def batch_memory(
    model: TrainableModel,
    batch: Batch,
    *,
    dtype: torch.dtype = torch.bfloat16,
    optimizer_buffers: float = 2,
    backend: Backend = "cpu",
) -> StepMemory:
    """`step_memory` of training `model`, frozen and checkpointed as it is, on `batch`.

    It counts the batch's own lengths. Raises ValueError as it does.
    """
    tokens = batch.tokens
    if isinstance(batch, PretrainingBatch):
        num_predicted = batch.masked_labels.numel()
        num_read = min(tokens.num_tokens, num_predicted + tokens.num_sequences)
    else:
        num_read = tokens.num_tokens if model.reads_every_token else tokens.num_sequences
        num_predicted = tokens.num_tokens if isinstance(model, LanguageModel) else 0
    parameters = list(model.parameters())
    return _memory(
        model.config,
        tokens.lengths,
        num_predicted=num_predicted,
        num_read=num_read,
        num_parameters=sum(p.numel() for p in parameters),
        num_frozen=sum(p.numel() for p in parameters if not p.requires_grad),
        dtype=dtype,
        checkpointed_layers=model.encoder.num_checkpointed_layers,
        optimizer_buffers=optimizer_buffers,
        backend=backend,
    )


def encoder_parameters(config: EncoderConfig, *, with_vocabulary: bool) -> int:
    """How many parameters an encoder with its pooler has, and the vocabulary head if asked."""
    width, wide = config.hidden_size, config.intermediate_size
    num_rows = config.vocab_size + config.type_vocab_size
    if config.positions == "learned":
        num_rows += config.max_position_embeddings
    embeddings = num_rows * width + 2 * width
    attention = 4 * width * (width + 1)
    feed_forward = 2 * width * wide + width + wide
    layers = config.num_layers * (attention + feed_forward + 4 * width)
    pooler = width * (width + 1)
    head = width * (width + 1) + 2 * width + config.vocab_size if with_vocabulary else 0
    return embeddings + layers + pooler + head


def _refuse_impossible(
    config: EncoderConfig,
    num_tokens: int,
    num_predicted: int,
    num_read: int,
    checkpointed_layers: int,
) -> None:
    for name, number, least, most in (
        ("num_predicted", num_predicted, 0, num_tokens),
        ("num_read", num_read, 1, num_tokens),
        ("checkpointed_layers", checkpointed_layers, 0, config.num_layers),
    ):
        if not least <= number <= most:
            raise ValueError(f"{name} must lie in [{least}, {most}], got {number}")
