"""Activation checkpointing: layers that keep only what entered them, for a second computation.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

from bert_core.model.trainable import Model


def checkpoint_activations(model: Model, num_layers: int) -> None:
    """Let the `num_layers` lowest layers keep only their input for the way back; 0 undoes it.

    The way back computes each of them once more, a third more work, and drops the same elements
    again: gradients are those of the same training without it, bit for bit. Raises ValueError
    where the encoder has fewer layers.
    """
    if not 0 <= num_layers <= model.config.num_layers:
        raise ValueError(f"num_layers must lie in [0, {model.config.num_layers}], got {num_layers}")
    model.encoder.num_checkpointed_layers = num_layers
