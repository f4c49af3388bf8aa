"""How many of planted near duplicates are found (decision 33 has more figures)."""

import numpy as np
import pytest

from pipelines.stages.corpus.selection import NUM_HASHES, find_near

NUM_PAIRS = 2000


def planted(shared: float) -> tuple[np.ndarray, np.ndarray]:
    """[2N, 64] signatures: documents that agree in `shared` of all hashes, then a copy of each.

    The share of hashes in which a copy agrees with its original is drawn from 0.6 to 1; it is
    returned as well.
    """
    draw = np.random.default_rng(5)
    first = draw.integers(0, 2**32, (NUM_PAIRS, NUM_HASHES), np.uint32)
    template = draw.integers(0, 2**32, NUM_HASHES, np.uint32)
    documents = np.where(draw.random(first.shape) < shared, template, first)
    agree = draw.random(first.shape) < draw.uniform(0.6, 1.0, (NUM_PAIRS, 1))
    copies = np.where(agree, documents, draw.integers(0, 2**32, first.shape, np.uint32))
    return np.concatenate([documents, copies]), (copies == documents).mean(axis=1)


@pytest.mark.parametrize(("shared", "least"), [(0.0, 1.0), (0.5, 0.999), (0.65, 0.99)])
def test_planted_duplicates_are_found_also_where_all_documents_share_a_template(
    shared: float, least: float
) -> None:
    signatures, estimates = planted(shared)
    (found,) = find_near(lambda index: signatures, [np.zeros(2 * NUM_PAIRS, dtype=bool)], 0.8)
    is_duplicate = estimates >= 0.8
    assert is_duplicate.sum() > NUM_PAIRS / 3
    assert found[NUM_PAIRS:][is_duplicate].mean() >= least
    if not shared:
        assert not found[NUM_PAIRS:][~is_duplicate].any()
        assert not found[:NUM_PAIRS].any()
