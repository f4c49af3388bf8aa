"""The operations on a CPU, their backward passes written by hand for its caches."""

from bert_core.backends.cpu.grouped_attention import attend
from bert_core.backends.cpu.layer_kernels import add_norm, feed_forward, linear, look_up
from bert_core.backends.cpu.layout import fill_rows, lay_out, take_rows
from bert_core.backends.cpu.vocabulary_loss import vocabulary_loss_sum

takes_compute_weights = True
