"""Changes to a model before its optimizer is built: freezing, resizing, informed initial weights.

With the published initialization the heads of a small BERT read all positions equally, and for
thousands of steps it learns nothing but token frequencies, until queries, keys, values and the next
layers agree on where neighbours are. `attend_to_neighbours` lets them start with that agreement.
Attention that begins as trained attention looks is an idea of Trockman and Kolter, "Mimetic
Initialization of Self-Attention Layers" (2023); that offsets are rotations of sines is from Vaswani
et al. (2017), section 3.5. D = hidden size, K = head width, V = vocabulary, S = positions.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bert_core.config import EncoderConfig, check_whole
from bert_core.model.encoder import Encoder, EncoderLayer, VocabularyHead
from bert_core.model.trainable import Model


def freeze(model: Model, *, embeddings: bool = False, layers: int = 0) -> tuple[str, ...]:
    """Freeze parts of the encoder and return the names of all frozen parameters.

    `embeddings` are the tables and their normalization (in pretraining the output layer shares the
    token embeddings and is frozen with them), `layers` how many of the lowest layers. Call it
    before the optimizer is built, and undo it with `model.requires_grad_(True)`. Raises ValueError
    if the encoder has fewer layers, or the model already has an optimizer.
    """
    num_layers = model.config.num_layers
    if not 0 <= layers <= num_layers:
        raise ValueError(f"layers must lie in [0, {num_layers}], got {layers}")
    _check_no_optimizer(model)
    prefixes = tuple(f"encoder.layers.{index}." for index in range(layers))
    prefixes += ("encoder.embeddings.",) if embeddings else ()
    for name, parameter in model.named_parameters():
        if name.startswith(prefixes):
            parameter.requires_grad_(False)
    return tuple(name for name, p in model.named_parameters() if not p.requires_grad)


def resize_positions(model: Model, num_positions: int) -> None:
    """Let `model` read sequences of up to `num_positions` tokens; those that fit read as before.

    A table that grows repeats its rows in order, so that heads that attend a few tokens away work
    at once (Beltagy et al., 2020, section 5). Raises ValueError for less than one position, and if
    the model has an optimizer already.
    """
    check_whole("num_positions", num_positions, 1)
    _check_no_optimizer(model)
    embeddings = model.encoder.embeddings
    table = embeddings.position  # [S, D]
    num_new = max(0, num_positions - len(table))
    rows = table[torch.arange(num_new, device=table.device) % len(table)]
    embeddings.position = _resized(table, rows, num_positions)
    _set_config(model, replace(model.config, max_position_embeddings=num_positions))
    if model.embedding is not None and (model.embedding.max_tokens or 0) > num_positions:
        model.embedding = replace(model.embedding, max_tokens=num_positions)


@torch.no_grad()
def resize_vocabulary(model: Model, num_tokens: int) -> None:
    """Let `model` read the ids below `num_tokens`, and predict them if it predicts tokens.

    The last tokens are cut off where it has more. Each new token starts as the mean of all, output
    bias included, so that a trained model gives it an average likelihood and predicts the others
    about as before (Hewitt, 2021). Raises ValueError for less than one token, and if the model has
    an optimizer already.
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


# Of a normal distribution of deviation 1 that is cut off at two deviations.
_CUT_VARIANCE = 0.7737
# Of the sines, in standard deviations of the token embeddings.
_AMPLITUDE = 1.5
_SHARPNESS = 6.0  # a head's score at its distance
_GAIN = 0.7  # of the rotations of values and outputs
# Size of word vectors relative to random embeddings. At their size a few hundred steps at the rates
# of pretraining would erase what the vectors know (docs/decisions/0040).
WORD_VECTOR_SCALE = 8.0


def begin_as_word_vectors(encoder: Encoder, vectors: Tensor) -> None:
    """Initialize token embeddings with `vectors` [V, D] of length 1, scaled.

    A token whose vector is 0 keeps its random embedding.
    """
    table, width = encoder.embeddings.token, encoder.config.hidden_size
    assert vectors.shape == table.shape
    deviation = WORD_VECTOR_SCALE * math.sqrt(_CUT_VARIANCE) * encoder.config.initializer_range
    is_known = vectors.any(dim=1)
    with torch.no_grad():
        table[is_known.to(table.device)] = (vectors[is_known] * deviation * width**0.5).to(table)


def attend_to_neighbours(encoder: Encoder, *, seed: int, embedding_scale: float = 1.0) -> None:
    """Start each head of the first layer so that a token reads the one at a fixed distance.

    The distances are -1, 1, -2, 2, ...; -1, -2, ... in a causal encoder. Position embeddings become
    sines and cosines that differ at every position. A head's queries and keys read the same of
    them, rotated by its distance, so that its score there is about `_SHARPNESS` and elsewhere
    about 0. Values and outputs are random rotations. Token embeddings are `embedding_scale` times
    as large as random ones. Raises ValueError for heads of odd width.
    """
    config = encoder.config
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    if width % 2:
        raise ValueError(f"attend_to_neighbours needs heads of an even width, got {width}")
    generator = torch.Generator().manual_seed(seed)
    frequencies = _frequencies(heads, width // 2, generator)
    amplitude = _AMPLITUDE * embedding_scale * config.initializer_range
    sines = amplitude * _sines(config.max_position_embeddings, frequencies)
    # The size of a sine once token, segment and position are summed and normalized.
    drawn = _CUT_VARIANCE * config.initializer_range**2
    spread = math.sqrt((embedding_scale**2 + 1) * drawn + amplitude**2 / 2)
    scale = math.sqrt(_SHARPNESS * math.sqrt(width) / (width / 2)) * spread / amplitude
    layer = encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    attention = layer.attention
    with torch.no_grad():
        encoder.embeddings.position.copy_(sines)
        weight = attention.to_qkv.weight.view(3, heads, width, config.hidden_size)
        for head in range(heads):
            distance = -(head + 1) if config.causal else (head // 2 + 1) * (-1, 1)[head % 2]
            block = slice(head * width, (head + 1) * width)
            turn = _rotation(distance * frequencies[head * width // 2 : (head + 1) * width // 2])
            weight[0, head, :, block] += (scale * turn).to(weight)
            weight[1, head, :, block] += (scale * torch.eye(width)).to(weight)
        for part in (attention.to_qkv.weight[2 * config.hidden_size :], attention.to_out.weight):
            rotation = torch.empty(part.shape, dtype=torch.float32)
            nn.init.orthogonal_(rotation, gain=_GAIN, generator=generator)
            part.copy_(rotation)


def predict_frequencies(head: VocabularyHead, counts: Tensor) -> None:
    """Initialize the bias of `head` so that it predicts tokens at their frequencies.

    One is added to each of the `counts` [V], none of which is negative.
    """
    assert counts.shape == head.bias.shape
    shares = (counts.double() + 1) / (counts.double() + 1).sum()
    with torch.no_grad():
        # The softmax ignores a constant; smaller numbers lose less in bf16.
        head.bias.copy_((shares.log() - shares.log().mean()).float())


def _frequencies(heads: int, pairs: int, generator: torch.Generator) -> Tensor:
    """[heads * pairs] radians a position between 0 and pi, those of each head spread evenly.

    Each is drawn from its own interval: with evenly spaced ones some far distance would look like a
    near one.
    """
    places = torch.arange(pairs) + torch.rand(heads, pairs, generator=generator)
    return (math.pi / pairs * places).flatten()


def _sines(num_positions: int, frequencies: Tensor) -> Tensor:
    """[num_positions, D] the cosine and the sine of each frequency, side by side."""
    angle = torch.arange(num_positions)[:, None] * frequencies
    return torch.stack((angle.cos(), angle.sin()), dim=-1).flatten(1)


def _rotation(angles: Tensor) -> Tensor:
    """[K, K] what turns the pair (cos a, sin a) into that of a + angle, for K / 2 angles."""
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)
    return torch.block_diag(*pairs)
