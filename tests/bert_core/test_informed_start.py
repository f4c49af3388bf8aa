"""Weights that begin with what is known of any text: neighbours, and how often words occur."""

import pytest
import torch

from bert_core.batch import PretrainingBatch, RaggedBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.model.encoder import Encoder, attention_probabilities
from bert_core.model.preparation import attend_to_neighbours, predict_frequencies

LENGTH = 100


def tokens_of_one_sequence(vocab_size: int, length: int = LENGTH) -> RaggedBatch:
    ids = torch.randint(5, vocab_size, (length,), generator=torch.Generator().manual_seed(1))
    return RaggedBatch.from_arrays(ids.numpy(), None, torch.tensor([length]).numpy())


@torch.no_grad()
def shares_read(encoder: Encoder, length: int = LENGTH) -> torch.Tensor:
    """[H, S, S] how much each token reads of each in the first layer."""
    first = next(encoder.queries_keys_values(tokens_of_one_sequence(500, length)))
    return attention_probabilities(first, causal=encoder.config.causal)


def at_distances(shares: torch.Tensor, distances: list[int]) -> list[float]:
    """How much the heads read of the token at the distance that each was given."""
    pairs = zip(shares, distances, strict=True)
    return [float(share.diagonal(distance).mean()) for share, distance in pairs]


@pytest.mark.parametrize(
    ("size", "causal", "distances"),
    [
        ("tiny", False, [-1, 1]),
        ("mini", False, [-1, 1, -2, 2]),
        ("mini", True, [-1, -2, -3, -4]),
        ("base", False, [-1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6]),
    ],
)
def test_each_head_of_the_first_layer_reads_one_neighbour(size, causal, distances):
    torch.manual_seed(0)
    encoder = Encoder(encoder_config(size, 500, causal=causal, num_layers=1))
    before = at_distances(shares_read(encoder), distances)
    attend_to_neighbours(encoder, seed=0)
    after = at_distances(shares_read(encoder), distances)
    assert max(before) < 0.1
    assert min(after) > 0.4, after


def test_no_distance_looks_like_another_one_in_long_sequences():
    torch.manual_seed(0)
    encoder = Encoder(encoder_config("tiny", 500, max_position_embeddings=512))
    attend_to_neighbours(encoder, seed=0)
    shares = shares_read(encoder, 512)[0]
    far = [float(shares.diagonal(d).mean()) for d in range(-500, 500) if d != -1]
    assert max(far) < 0.15 * float(shares.diagonal(-1).mean())


def test_it_is_the_same_for_every_rank_and_leaves_the_other_layers():
    encoders = []
    for _ in range(2):
        torch.manual_seed(0)
        encoders.append(Encoder(encoder_config("tiny", 500)))
        torch.rand(3)  # whatever was drawn before
        attend_to_neighbours(encoders[-1], seed=3)
    torch.manual_seed(0)
    untouched = Encoder(encoder_config("tiny", 500)).state_dict()
    for (name, one), other in zip(
        encoders[0].state_dict().items(), encoders[1].state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
        is_changed = name in (
            "embeddings.position",
            "layers.0.attention.to_qkv.weight",
            "layers.0.attention.to_out.weight",
        )
        assert torch.equal(one, untouched[name]) != is_changed, name


def test_the_first_loss_is_that_of_the_frequencies():
    torch.manual_seed(0)
    counts = (10_000 / torch.arange(1, 501)).round()  # Zipf's law
    model = PretrainingModel(encoder_config("tiny", 500), next_sentence=False)
    tokens = tokens_of_one_sequence(500, 512)
    labels = torch.multinomial(counts, 512, replacement=True)
    batch = PretrainingBatch(
        tokens=tokens, masked_positions=torch.arange(512), masked_labels=labels
    )
    shares = (counts + 1) / (counts + 1).sum()
    expected = float(-shares.log()[labels].mean())
    untaught = model.loss_sums(batch)["mlm"].total.item() / 512
    predict_frequencies(model.vocabulary_head, counts)
    taught = model.loss_sums(batch)["mlm"].total.item() / 512
    assert untaught > expected + 1
    assert taught == pytest.approx(expected, abs=0.1)


def test_heads_of_an_odd_width_are_refused():
    odd = encoder_config("tiny", 50, hidden_size=130, num_attention_heads=26)
    with pytest.raises(ValueError, match="even width, got 5"):
        attend_to_neighbours(Encoder(odd), seed=0)
