"""Freezing: the parts of a model that fine-tuning leaves as they are."""

from collections.abc import Iterator

from bert_core.model.trainable import Model


def freeze(
    model: Model, *, embeddings: bool = False, layers: int = 0, matrices: bool = False
) -> tuple[str, ...]:
    """Freeze parts of the encoder and return the names of all that is frozen then.

    Args:
        model: what is to be trained, before its optimizer is built.
        embeddings: the tables and their normalization. In pretraining the token embeddings are
            the last layer's weights too, and those are frozen with them.
        layers: so many of the lowest layers; with `embeddings` and all layers the head alone
            (the pooler belongs to it) is trained.
        matrices: every matrix of the encoder, so that of it biases and normalizations alone are
            trained (BitFit; Ben Zaken et al., 2022).

    A frozen parameter keeps every bit and costs no gradient; dropout is what it was. Undo it with
    `model.requires_grad_(True)`. Raises ValueError where the encoder has fewer layers, nothing is
    to be frozen, or the model has an optimizer already.
    """
    num_layers = model.config.num_layers
    if not 0 <= layers <= num_layers:
        raise ValueError(f"layers must lie in [0, {num_layers}], got {layers}")
    if not (embeddings or layers or matrices):
        raise ValueError("freeze must be told what to freeze, got nothing; say embeddings=True, "
                         "layers=… or matrices=True")  # fmt: skip
    if any(parameter.grad is not None for parameter in model.parameters()):
        raise ValueError(
            "a model must be frozen before its optimizer is built, found gradients; build the "
            "model anew, freeze it, then build the optimizer"
        )
    prefixes = tuple(_prefixes(embeddings, layers))
    for name, parameter in model.named_parameters():
        is_matrix = name.startswith("encoder.") and parameter.ndim > 1
        if name.startswith(prefixes) or (matrices and is_matrix):
            parameter.requires_grad_(False)
    return tuple(name for name, p in model.named_parameters() if not p.requires_grad)


def _prefixes(embeddings: bool, layers: int) -> Iterator[str]:
    if embeddings:
        yield "encoder.embeddings."
    for index in range(layers):
        yield f"encoder.layers.{index}."
