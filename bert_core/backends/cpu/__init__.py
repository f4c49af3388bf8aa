"""The operations on a CPU, their backward passes written by hand for its caches."""

from bert_core.backends.cpu.attention import attend, fill_rows, lay_out, take_rows
from bert_core.backends.cpu.layers import (
    add_norm,
    feed_forward,
    linear,
    look_up,
    vocabulary_loss_sum,
)

takes_compute_weights = True
