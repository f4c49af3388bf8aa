"""Two passes of one text, as SimCSE compares them (Gao, Yao and Chen, 2021), drop differently."""

import numpy as np
import torch

from bert_core.backends.dropout import DropoutKey, Site, dropout_mask
from bert_core.batch import LabelledBatch
from bert_core.model.task_models import SCALE, SentenceEncoder
from bert_core.model.trainable import Sum
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import LENGTHS, ragged_batch, small_config

NUM_TEXTS = len(LENGTHS)


class ComparedWithItself(SentenceEncoder):
    """Of all second passes, that of the text itself is to be nearest to its first one."""

    passes = (0, 1)

    def loss_sums(self, batch, dropout_key=None):
        first, second = (self(batch.tokens, dropout_key.child(index)) for index in self.passes)
        target = torch.arange(NUM_TEXTS)
        scores = SCALE * first @ second.T
        loss = torch.nn.functional.cross_entropy(scores, target, reduction="sum")
        return {"label": Sum(loss, batch.num_labels)}


def new_model(kind=ComparedWithItself):
    torch.manual_seed(0)
    return kind(small_config(hidden_dropout=0.2, attention_dropout=0.2))


def batch(step=0):
    return LabelledBatch.from_arrays(ragged_batch(seed=step), np.zeros(NUM_TEXTS))


def trained(kind=ComparedWithItself):
    """Losses and the weights after three steps."""
    model = new_model(kind)
    optimizer = AdamW(model, OptimizationConfig(num_steps=3, learning_rate=1e-3))
    reports = train(model, optimizer, lambda step: [(0, batch(step))], seed=7, precision="float32")
    return [report.loss.item() for report in reports], optimizer.arena.values


def test_passes_under_two_children_differ_and_are_the_same_again(backend):
    model, tokens = new_model(), ragged_batch()
    key = DropoutKey.at(1, 2, 3)
    keys = [key, key.child(0), key.child(1), key.child(0).child(0)]
    found = [model(tokens, each) for each in keys]
    for place, vectors in enumerate(found):
        for other in found[:place]:
            assert (vectors * other).sum(dim=-1).max() < 0.999  # cosines
    assert torch.equal(found[1], model(tokens, DropoutKey.at(1, 2, 3).child(0)))


def test_children_draw_independently_in_every_layer():
    key, values = DropoutKey.at(0, 0, 0), torch.empty(200_000)
    keys = [key, key.child(0), key.child(1), DropoutKey.at(0, 0, 1).child(0)]
    drops = [
        dropout_mask(values, 0.5, each.at_layer(layer), Site.ATTENTION_OUTPUT).kept(torch.float32)
        for each in keys
        for layer in (0, 1)
    ]
    correlation = torch.corrcoef(torch.stack(drops)) - torch.eye(len(drops))
    assert correlation.abs().max() < 0.02


def test_a_loss_that_compares_two_passes_is_trained_reproducibly(backend):
    losses, weights = trained()
    assert all(loss > 0 for loss in losses)
    again, weights_again = trained()
    assert losses == again
    assert torch.equal(weights, weights_again)


def test_one_pass_drops_what_it_always_dropped():
    key = DropoutKey.at(1, 2, 3)
    drawn = dropout_mask(torch.empty(1000), 0.1, key.at_layer(2), Site.ATTENTION_OUTPUT)
    assert drawn.words()[:4].tolist() == [26816, 10857, 12151, 3256]
    assert key.at_layer(2).offsets(1, 2).tolist() == [[328298, 201255], [105371, 44229]]
