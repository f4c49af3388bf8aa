"""Held-out figures of a pretrained encoder."""

from bert_core.model.catalogue import TrainableModel
from pipelines.stages.examples.batches import (
    ExampleReader,
    evaluation_batches,
    num_evaluation_batches,
)
from pipelines.training.reduction import means_over_ranks

_BATCH_TOKENS = 8_192


def pretraining_figures(
    model: TrainableModel,
    reader: ExampleReader,
    max_examples: int,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, float]:
    """Held-out losses and accuracies of masked tokens and, where there are pairs, of NSP.

    The first `max_examples` examples count, in float32 without dropout; any number of ranks gives
    the same bits, as long as each computes with as many threads.
    """
    device = next(model.parameters()).device
    batches = evaluation_batches(
        reader, _BATCH_TOKENS, max_examples=max_examples, rank=rank, world_size=world_size
    )
    num_batches = num_evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples)
    names = [f"{loss}_{figure}" for loss in model.loss_names for figure in ("loss", "accuracy")]
    means = means_over_ranks(
        names,
        num_batches,
        ((number, model.evaluation_sums(batch.to(device))) for number, batch in batches),
    )
    # A language model's only labels are the next tokens.
    return {f"eval/{name.replace('label_', 'clm_')}": value for name, value in means.items()}
