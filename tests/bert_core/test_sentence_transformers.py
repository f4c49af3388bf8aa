"""What is exported for sentence-transformers opens there and gives the same vectors."""

import json
import logging

import numpy as np
import pytest
import torch

from bert_core.config import EmbeddingConfig
from bert_core.hugging_face import export_model, import_model
from bert_core.inference.pretrained import embed
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import SPECIAL_TOKENS, Normalization, WordPieceTokenizer
from tests.bert_core.batches import small_config

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TEXTS = ["a short one", "b", "one of a rather greater length than the others have", "long " * 40]


def small_encoder():
    tokenizer = WordPieceTokenizer(
        [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    )
    torch.manual_seed(0)
    return tokenizer, build_model("encoder", small_config(vocab_size=tokenizer.vocab_size))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_equal(tmp_path, caplog, pooling):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer, model = small_encoder()
    folder = tmp_path / "exported"
    export_model(folder, model, tokenizer, pooling=pooling)
    with caplog.at_level(logging.WARNING):
        theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert [record.getMessage() for record in caplog.records] == []
    ours = embed(import_model(folder), tokenizer, TEXTS)
    assert ours.num_truncated == 1
    vectors = theirs.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(ours.vectors, vectors, atol=1e-5)


def test_an_unknown_pooling_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pooling must be mean or cls, got 'median'"):
        export_model(tmp_path / "x", build_model("encoder", small_config()), pooling="median")


def test_what_it_saves_itself_is_read_and_goes_out_again(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    tokenizer, model = small_encoder()
    export_model(tmp_path / "plain", model, tokenizer, pooling="mean")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "plain"), device="cpu")
    theirs[1].pooling_mode = "cls"
    theirs.max_seq_length = 9
    del theirs[2]
    theirs.save(str(tmp_path / "theirs"))
    read = import_model(tmp_path / "theirs")
    assert read.embedding == EmbeddingConfig(pooling="cls", normalize=False, max_tokens=9)
    vectors = embed(read, tokenizer, TEXTS)
    assert vectors.num_truncated == 3
    expected = theirs.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(vectors.vectors, expected, atol=1e-5)
    export_model(tmp_path / "again", read, tokenizer)
    assert import_model(tmp_path / "again").embedding == read.embedding


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode_max_tokens": True},
            "must pool by cls or mean alone",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "found \\['lasttoken'\\]"),
        ("sentence_bert_config.json", {"max_seq_length": 4000}, "at most the 64"),
        ("sentence_bert_config.json", {"max_seq_length": "256"}, "a whole number"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query", "prompts": {"query": "query: "}},
            "no prompt before every text",
        ),
    ],
)
def test_what_would_give_other_vectors_is_refused(tmp_path, file, entries, message):
    tokenizer, model = small_encoder()
    export_model(tmp_path / "x", model, tokenizer, pooling="mean")
    path = tmp_path / "x" / file
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, **entries}))
    with pytest.raises(ValueError, match=message) as told:
        import_model(tmp_path / "x")
    assert str(path) in str(told.value)


def test_an_encoder_below_the_list_of_modules_is_found(tmp_path):
    tokenizer, model = small_encoder()
    export_model(tmp_path / "x", model, tokenizer, pooling="mean")
    below = tmp_path / "x" / "0_Transformer"
    below.mkdir()
    for path in list((tmp_path / "x").iterdir()):
        if path.is_file() and path.name != "modules.json":
            path.rename(below / path.name)
    modules = json.loads((tmp_path / "x" / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "x" / "modules.json").write_text(json.dumps(modules))
    read = import_model(tmp_path / "x")
    assert read.embedding == EmbeddingConfig(max_tokens=64)
    modules[0]["path"] = "../x"
    (tmp_path / "x" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="must name folders beside it"):
        import_model(tmp_path / "x")


def test_texts_are_lowered_first_where_the_model_says_so():
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *LETTERS], Normalization(lowercase=False))
    _, model = small_encoder()
    model.embedding = EmbeddingConfig(lowercase=True)
    vectors = embed(model, tokenizer, ["A B", "a b"]).vectors
    assert (vectors[0] == vectors[1]).all()
    model.embedding = None
    vectors = embed(model, tokenizer, ["A B", "a b"]).vectors
    assert (vectors[0] != vectors[1]).any()
