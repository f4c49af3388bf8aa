"""Vectors of tokens: counted as by hand, the singular vectors of numpy, alike where words are."""

import numpy as np
import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.encoder import Encoder
from bert_core.model.preparation import WORD_VECTOR_SCALE, begin_as_word_vectors
from bert_core.word_vectors import Cooccurrences, word_vectors

WEIGHTS = {1: 60, 2: 30, 3: 20, 4: 15, 5: 12}


def by_hand(sequences, vocab_size, is_counted):
    counts = np.zeros((vocab_size, vocab_size))
    for sequence in sequences:
        for place, token in enumerate(sequence):
            for other in range(max(0, place - 5), min(len(sequence), place + 6)):
                if other != place and is_counted[token] and is_counted[sequence[other]]:
                    counts[token, sequence[other]] += WEIGHTS[abs(other - place)]
    return counts


def flat(sequences):
    offsets = np.cumsum([0, *(len(each) for each in sequences)])
    return np.concatenate(sequences), offsets


def drawn(vocab_size=20, number=30):
    generator = np.random.default_rng(0)
    return [generator.integers(vocab_size, size=generator.integers(1, 40)) for _ in range(number)]


def test_counts_are_those_by_hand():
    sequences = drawn()
    is_counted = np.arange(20) > 2
    contexts = np.array([5, 3, 19])
    found = Cooccurrences(20, contexts)
    for part in (sequences[:7], sequences[7:]):
        found.add(*flat(part), is_counted)
    expected = by_hand(sequences, 20, is_counted)
    np.testing.assert_array_equal(found.counts.numpy(), expected[:, contexts])


def test_a_slice_of_a_longer_array_is_counted_alone():
    sequences = drawn()
    ids, offsets = flat(sequences)
    found = Cooccurrences(20, np.arange(20))
    found.add(ids, offsets[3:9], np.ones(20, bool))
    expected = by_hand(sequences[3:8], 20, np.ones(20, bool))
    np.testing.assert_array_equal(found.counts.numpy(), expected)


def counted(sequences, vocab_size):
    found = Cooccurrences(vocab_size, np.arange(vocab_size))
    found.add(*flat(sequences), np.ones(vocab_size, bool))
    return found


def test_cosines_are_those_of_the_largest_singular_vectors():
    sequences = drawn(number=300)
    found = counted(sequences, 20)
    counts = found.counts.double().numpy()
    shares = counts.sum(0) ** 0.75
    ratios = counts / counts.sum(1, keepdims=True) / (shares / shares.sum())
    left, values, _ = np.linalg.svd(np.log(np.maximum(ratios, 1)))
    expected = left[:, :6] * np.sqrt(values[:6])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = word_vectors(found, 6, seed=1).double().numpy()
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-4)


def test_words_with_the_same_neighbours_are_alike():
    generator = np.random.default_rng(0)
    # Two kinds of places, each with words of its own: even ones stand near 40, odd ones near 41.
    sequences = []
    for _ in range(2000):
        kind = generator.integers(2)
        words = generator.integers(10, size=4) * 2 + kind
        sequences.append(np.insert(words, 2, 40 + kind))
    vectors = word_vectors(counted(sequences, 50), 8, seed=0)
    cosines = (vectors @ vectors.T)[:20, :20]
    is_same = torch.arange(20)[:, None] % 2 == torch.arange(20) % 2
    assert cosines[is_same].min() > cosines[~is_same].max()
    assert not vectors[45].any()  # a token that never stands anywhere
    torch.testing.assert_close(vectors[:20].norm(dim=1), torch.ones(20))


def test_the_bits_do_not_depend_on_the_number_of_threads():
    def vectors():
        return word_vectors(counted(drawn(400, 2000), 400), 64, seed=3)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = vectors()
        torch.set_num_threads(2)
        two = vectors()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)


def test_token_embeddings_begin_as_them_and_unknown_ones_stay():
    torch.manual_seed(0)
    encoder = Encoder(encoder_config("tiny", 500))
    before = encoder.embeddings.token.detach().clone()
    vectors = torch.nn.functional.normalize(torch.randn(500, 128), dim=1)
    vectors[7] = 0
    begin_as_word_vectors(encoder, vectors)
    table = encoder.embeddings.token.detach()
    assert torch.equal(table[7], before[7])
    known = torch.arange(500) != 7
    cosines = torch.nn.functional.cosine_similarity(table[known], vectors[known])
    torch.testing.assert_close(cosines, torch.ones(499))
    ratio = float(table[known].std() / before.std())
    assert ratio == pytest.approx(WORD_VECTOR_SCALE, rel=0.02)
