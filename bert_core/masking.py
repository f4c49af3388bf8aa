"""Masked language modelling: which tokens are masked, and what replaces them.

As published (Devlin et al., 2019, section 3.1 and appendix A.1): 15% of an example's tokens are to
be predicted; of these 80% become [MASK], 10% a random token and 10% stay. Whole-word masking treats
a word's tokens as one unit and skips a word that would exceed the example's budget.

B = examples, T = tokens of all examples in a row, M = masked tokens, U = units (tokens or words).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_core.config import check_number, check_whole
from bert_core.randomness import Bits, fold_in, integers, uniform

_CHOICE, _REPLACEMENT, _TOKEN = range(3)  # the three draws made from an example's key
_LIMIT = 1 << 16  # rows and columns have 16 bits each in the sorting key


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingConfig:
    """How many tokens are masked and how; raises ValueError for shares that are impossible."""

    fraction: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = False
    max_masked_tokens: int | None = None

    def __post_init__(self) -> None:
        check_number("fraction", self.fraction, "lie in (0, 1]")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                "mask_share and random_share must not be negative nor exceed 1 together, "
                f"got {self.mask_share} and {self.random_share}"
            )
        if self.max_masked_tokens is not None:
            check_whole("max_masked_tokens", self.max_masked_tokens, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskableVocabulary:
    """What masking has to know of a vocabulary; `WordPieceTokenizer.maskable` makes one."""

    mask_id: int
    is_maskable: NDArray[np.bool_]  # [V] False at [PAD], [CLS], [SEP]
    continues_word: NDArray[np.bool_]  # [V] True at tokens that start with ##
    replacement_ids: NDArray[np.int64]  # tokens a random replacement may draw: nothing special


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedTokens:
    """Token ids after masking, and the labels to predict."""

    input_ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [M] indices into the T tokens, ascending
    labels: NDArray[np.int64]  # [M] the original ids


def mask_tokens(
    input_ids: NDArray[np.integer],
    lengths: NDArray[np.integer],
    keys: Bits,
    *,
    config: MaskingConfig,
    vocabulary: MaskableVocabulary,
) -> MaskedTokens:
    """Mask every example of a ragged batch by its own key, whatever else is in the batch.

    `input_ids` [T] are the examples one after the other, `lengths` [B] their tokens, at most 65,536
    examples of at most 65,536, and `keys` [B] one draw of `random_bits` per example. An example
    of n tokens gets max(1, round(fraction * n)) masks as published, n counting its special tokens;
    fewer where it has fewer maskable tokens or whole words leave a rest.
    """
    original = input_ids.astype(np.int64)
    row_lengths = lengths.astype(np.int64)
    assert int(lengths.sum()) == original.size and keys.shape == lengths.shape
    assert max(lengths.size, int(lengths.max(initial=0))) <= _LIMIT
    first_token = np.cumsum(row_lengths) - row_lengths  # [B]
    row = np.repeat(np.arange(row_lengths.size), row_lengths)  # [T]
    starts, sizes = _units(original, first_token, config.whole_words, vocabulary)
    rows = row[starts]
    budgets = np.maximum(1, np.rint(row_lengths * config.fraction).astype(np.int64))
    budgets = np.minimum(budgets, config.max_masked_tokens or _LIMIT)
    columns = starts - first_token[rows]
    chosen = _choose(sizes, rows, columns, budgets, keys)
    starts, sizes = starts[chosen], sizes[chosen]
    before = np.cumsum(sizes) - sizes
    positions = np.sort(np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes))
    masked_rows = row[positions]
    masked_columns = positions - first_token[masked_rows]
    masked = original.copy()
    masked[positions] = _replacements(
        original[positions], keys[masked_rows], masked_columns, config, vocabulary
    )
    return MaskedTokens(input_ids=masked, positions=positions, labels=original[positions])


def _units(
    input_ids: NDArray[np.int64],
    first_token: NDArray[np.int64],
    whole_words: bool,
    vocabulary: MaskableVocabulary,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First token and size of every unit that may be masked."""
    maskable = vocabulary.is_maskable[input_ids]
    if not whole_words:
        starts = np.flatnonzero(maskable)
        return starts, np.ones_like(starts)
    # A truncated segment may begin in the middle of a word: its rest is a word of its own.
    continues = maskable & vocabulary.continues_word[input_ids]
    continues[1:] &= maskable[:-1]
    continues[first_token[first_token < continues.size]] = False
    boundaries = np.append(np.flatnonzero(~continues), input_ids.size)
    starts, sizes = boundaries[:-1], np.diff(boundaries)
    kept = maskable[starts]
    return starts[kept], sizes[kept]


def _choose(
    sizes: NDArray[np.int64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    budgets: NDArray[np.int64],
    keys: Bits,
) -> NDArray[np.int64]:
    """Indices of the units to mask: in each row's random order, every unit that still fits."""
    draws = fold_in(fold_in(keys, _CHOICE)[rows], columns) >> np.uint64(32)
    # Rows, then draws; the column breaks ties, so that the order is the same on any machine.
    order_key = (rows.astype(np.uint64) << np.uint64(48)) | (draws << np.uint64(16))
    order_key |= columns.astype(np.uint64)
    left = budgets.copy()  # [B] tokens each row may still mask
    taken: list[NDArray[np.int64]] = []
    order = np.argsort(order_key)
    # A unit that does not fit now never will: each pass drops those and takes all that fit in turn,
    # so the passes are few (one where units are single tokens).
    while order.size:
        order = order[sizes[order] <= left[rows[order]]]
        fits = _within_budget(sizes[order], rows[order], left)
        taken.append(order[fits])
        spent = np.bincount(rows[order[fits]], sizes[order[fits]], minlength=left.size)
        left -= spent.astype(np.int64)
        order = order[~fits]
    return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)


def _within_budget(
    sizes: NDArray[np.int64], rows: NDArray[np.int64], left: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether each unit and all before it in its row fit into what the row has left."""
    total = np.cumsum(sizes)
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    before_row = np.zeros(left.size, dtype=np.int64)
    before_row[rows[begins]] = total[begins] - sizes[begins]
    return total - before_row[rows] <= left[rows]


def _replacements(
    labels: NDArray[np.int64],
    keys: Bits,
    columns: NDArray[np.int64],
    config: MaskingConfig,
    vocabulary: MaskableVocabulary,
) -> NDArray[np.int64]:
    draw = uniform(fold_in(fold_in(keys, _REPLACEMENT), columns))
    token = integers(fold_in(fold_in(keys, _TOKEN), columns), vocabulary.replacement_ids.size)
    return np.where(
        draw < config.mask_share,
        vocabulary.mask_id,
        np.where(
            draw < config.mask_share + config.random_share,
            vocabulary.replacement_ids[token],
            labels,
        ),
    )
