"""An encoder that is asked for some tokens gives the same as one that computes them all."""

import pytest
import torch

from bert_core.model.encoder import Encoder
from tests.bert_core.batches import LENGTHS, ragged_batch, small_config

NUM_TOKENS = sum(LENGTHS)
POSITIONS = {
    "first": [0, 3, 20, 84, 89, 153],
    "one": [100],
    "unordered": [150, 0, 19, 20, 7],
    "twice": [5, 5, 40, 5],
    "all": list(range(NUM_TOKENS)),
    "none": [],
}


def new_encoder(**overrides) -> Encoder:
    torch.manual_seed(0)
    return Encoder(small_config(**overrides))


def gradients_of(encoder, read):
    encoder.zero_grad()
    # Not a plain sum: normalized rows have one whatever they hold.
    weights = torch.linspace(-1, 1, read.numel()).view_as(read) / max(1, len(read))
    (read * weights).sum().backward()
    return {name: parameter.grad for name, parameter in encoder.named_parameters()}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("overrides", [{}, {"num_layers": 1}, {"causal": True}], ids=str)
def test_the_tokens_asked_for_are_those_of_the_whole(name, overrides):
    encoder = new_encoder(**overrides)
    tokens, positions = ragged_batch(), torch.tensor(POSITIONS[name], dtype=torch.int64)
    expected = encoder(tokens)[positions]
    read = encoder(tokens, None, positions)
    assert read.shape == expected.shape
    torch.testing.assert_close(read, expected, atol=1e-6, rtol=0)
    got, wanted = gradients_of(encoder, read), gradients_of(encoder, expected)
    for parameter, gradient in wanted.items():
        torch.testing.assert_close(got[parameter], gradient, atol=1e-6, rtol=1e-5)


def test_the_last_layer_computes_few_rows_where_few_are_asked_for():
    encoder = new_encoder(num_layers=3)
    rows = {}
    for number, layer in enumerate(encoder.layers):
        layer.feed_forward.register_forward_hook(
            lambda _, inputs, output, number=number: rows.update({number: len(output)})
        )
    encoder(ragged_batch(), None, ragged_batch().first_positions)
    assert min(rows[0], rows[1]) >= NUM_TOKENS
    assert rows[2] == 8  # six sequences, filled up to a common size
