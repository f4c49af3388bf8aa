"""What is exported for sentence-transformers opens there and gives the same vectors."""

import logging

import numpy as np
import pytest
import torch

from bert_core.hugging_face import export_model, import_model
from bert_core.inference import embed
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import SPECIAL_PIECES, WordPieceTokenizer
from tests.bert_core.batches import small_config

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TEXTS = ["a short one", "b", "one of a rather greater length than the others have", "long " * 40]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "mean_sqrt_len"])
def test_vectors_are_equal(tmp_path, caplog, pooling):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer = WordPieceTokenizer(
        [*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    )
    torch.manual_seed(0)
    model = build_model("encoder", small_config(vocab_size=tokenizer.vocab_size))
    folder = tmp_path / "exported"
    export_model(folder, model, tokenizer, pooling=pooling)
    with caplog.at_level(logging.WARNING):
        theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert [record.getMessage() for record in caplog.records] == []
    ours = embed(import_model(folder), tokenizer, TEXTS, pooling=pooling)
    assert ours.num_truncated == 1
    vectors = theirs.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(ours.vectors, vectors, atol=1e-5)


def test_an_unknown_pooling_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"pooling must be one of .*, got 'median'"):
        export_model(tmp_path / "x", build_model("encoder", small_config()), pooling="median")
