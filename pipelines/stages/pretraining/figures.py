"""Held-out figures of a pretrained encoder."""

from bert_core.model.catalogue import TrainableModel
from bert_core.training.metrics import RunningSums
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches

_BATCH_TOKENS = 8_192


def pretraining_figures(
    model: TrainableModel,
    reader: ExampleReader,
    max_examples: int,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, float]:
    """Held-out losses and accuracies of masked tokens and, where there are pairs, of NSP.

    The first `max_examples` examples count, on any number of ranks; float32, no dropout.
    """
    device = next(model.parameters()).device
    sums = RunningSums(device)
    batches = evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples)
    for index, batch in enumerate(batches):
        if index % world_size == rank:
            sums.add(model.evaluation_sums(batch.to(device)))
    names = [f"{loss}_{figure}" for loss in model.loss_names for figure in ("loss", "accuracy")]
    # A language model's only labels are the next tokens.
    return {
        f"eval/{name.replace('label_', 'clm_')}": value for name, value in sums.means(names).items()
    }
