"""Masks follow the published rules and depend on an example's own key alone."""

import numpy as np
import pytest

from bert_core.masking import MaskableVocabulary, MaskingConfig, mask_tokens
from bert_core.randomness import random_bits

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB_SIZE = 1000
FIRST_CONTINUATION = 700


_MASKABLE = np.ones(VOCAB_SIZE, dtype=bool)
_MASKABLE[[PAD, CLS, SEP]] = False
VOCABULARY = MaskableVocabulary(
    mask_id=MASK,
    is_maskable=_MASKABLE,
    continues_word=np.arange(VOCAB_SIZE) >= FIRST_CONTINUATION,
    replacement_ids=np.arange(5, VOCAB_SIZE),
)


def mask(input_ids, lengths, keys, **settings):
    config = MaskingConfig(**settings)
    return mask_tokens(input_ids, lengths, keys, config=config, vocabulary=VOCABULARY)


def examples(count: int, seed: int = 0, longest: int = 129) -> tuple[np.ndarray, np.ndarray]:
    """Random `[CLS] ... [SEP] ... [SEP]` rows of random lengths, one after the other."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, longest, count)
    rows = []
    for length in lengths:
        row = rng.integers(5, VOCAB_SIZE, length)
        row[0], row[length // 2], row[-1] = CLS, SEP, SEP
        rows.append(row)
    return np.concatenate(rows).astype(np.uint16), lengths


def keys(count: int, epoch: int = 0) -> np.ndarray:
    return random_bits(0, "masking", epoch, np.arange(count))


def words(input_ids: np.ndarray) -> list[list[int]]:
    """Token indices of every maskable word of one example, by the plain loop."""
    found: list[list[int]] = []
    for index, token in enumerate(input_ids):
        if token in (PAD, CLS, SEP):
            continue
        follows_word = index > 0 and input_ids[index - 1] not in (PAD, CLS, SEP)
        if token >= FIRST_CONTINUATION and follows_word:
            found[-1].append(index)
        else:
            found.append([index])
    return found


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_mask_does_not_depend_on_the_rest_of_the_batch(whole_words):
    input_ids, lengths = examples(50)
    together = mask(input_ids, lengths, keys(50), whole_words=whole_words)
    ends = np.cumsum(lengths)
    for row in (0, 17, 49):
        begin, end = ends[row] - lengths[row], ends[row]
        alone = mask(
            input_ids[begin:end],
            lengths[row : row + 1],
            keys(50)[row : row + 1],
            whole_words=whole_words,
        )
        assert np.array_equal(alone.input_ids, together.input_ids[begin:end])


def test_every_example_gets_the_published_number_of_masks():
    input_ids, lengths = examples(300)
    masked = mask(input_ids, lengths, keys(300))
    row = np.repeat(np.arange(300), lengths)
    expected = [max(1, round(int(length) * 0.15)) for length in lengths]
    assert np.bincount(row[masked.positions], minlength=300).tolist() == expected


def test_only_masked_positions_change_and_labels_are_what_stood_there():
    input_ids, lengths = examples(100)
    masked = mask(input_ids, lengths, keys(100))
    restored = masked.input_ids.copy()
    restored[masked.positions] = masked.labels
    assert np.array_equal(restored, input_ids)
    assert not np.isin(masked.labels, [PAD, CLS, SEP]).any()
    assert (np.diff(masked.positions) > 0).all()


def test_replacements_are_80_10_10_and_never_special():
    input_ids, lengths = examples(5000)
    masked = mask(input_ids, lengths, keys(5000))
    now = masked.input_ids[masked.positions]
    is_mask, is_kept = now == MASK, now == masked.labels
    count = now.size
    # A random token equals the old one once in about a thousand draws.
    for share, expected in ((is_mask.mean(), 0.8), (is_kept.mean(), 0.1 + 0.1 / 995)):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / count)
    drawn = now[~is_mask & ~is_kept]
    assert drawn.min() >= 5
    assert np.unique(drawn).size > 970  # 5,000 draws miss about 6 of 995 tokens


def test_every_place_is_masked_equally_often():
    input_ids = np.concatenate([[CLS], np.arange(5, 23), [SEP]] * 4000)
    masked = mask(input_ids, np.full(4000, 20), keys(4000))
    counts = np.bincount(masked.positions % 20, minlength=20)
    assert counts[0] == counts[19] == 0
    expected = 4000 * 3 / 18
    assert np.abs(counts[1:19] - expected).max() < 5 * np.sqrt(expected)


def test_whole_words_are_masked_whole_and_fill_the_budget_as_the_plain_loop_would():
    input_ids, lengths = examples(200)
    masked = mask(input_ids, lengths, keys(200), whole_words=True)
    chosen = np.zeros(input_ids.size, dtype=bool)
    chosen[masked.positions] = True
    begin = 0
    for length in lengths:
        row, hidden = input_ids[begin : begin + length], chosen[begin : begin + length]
        begin += length
        budget = max(1, round(int(length) * 0.15))
        rest = budget - hidden.sum()
        assert rest >= 0
        for word in words(row):
            assert hidden[word].all() or not hidden[word].any()
            # The greedy rule leaves no word out that would still have fitted.
            assert hidden[word].all() or len(word) > rest


def test_masks_can_be_capped():
    input_ids, lengths = examples(100)
    masked = mask(input_ids, lengths, keys(100), max_masked_tokens=2)
    row = np.repeat(np.arange(100), lengths)
    assert np.bincount(row[masked.positions]).max() == 2


def test_an_example_of_special_tokens_alone_gets_no_mask():
    input_ids = np.array([CLS, SEP, CLS, 9, SEP])
    masked = mask(input_ids, np.array([2, 3]), keys(2))
    assert masked.positions.tolist() == [3]


@pytest.mark.parametrize(
    "settings",
    [
        {"fraction": 0.0},
        {"fraction": 1.5},
        {"mask_share": 0.8, "random_share": 0.3},
        {"random_share": -0.1},
        {"max_masked_tokens": 0},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        MaskingConfig(**settings)
