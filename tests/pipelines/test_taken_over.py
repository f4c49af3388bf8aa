"""A vocabulary that was made elsewhere: taken over, and read with its added tokens."""

from pathlib import Path

import pyarrow as pa
import pytest
import torch

from bert_core.config import encoder_config
from bert_core.hugging_face import export_model
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import load_model
from bert_core.vocabulary import (
    AddedToken,
    WordPieceTokenizer,
)
from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.registry.exchange import import_path
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.continuing import continued_model, settings_for
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.vocabulary.encoding import SentenceEncoder
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary, load_tokenizer
from pipelines.train.imported import existing_encoder

USER = AddedToken(content="<user>", special=True, normalized=False)
PHRASE = AddedToken(content="of the")


@pytest.fixture
def listed(small_vocabulary, tmp_path) -> Path:
    """A vocab.txt alone."""
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in load_tokenizer(small_vocabulary).tokens))
    return path


def test_examples_are_made_with_an_imported_vocabulary(listed, small_corpus, small_context):
    with pytest.raises(UserError, match="say it with --uncased or --cased"):
        import_path(listed, small_context)
    imported = import_path(listed, small_context, lowercase=True)
    assert imported.kind == "vocabulary"
    cased = import_path(listed, small_context, lowercase=False)
    assert cased.fingerprint != imported.fingerprint
    settings = VocabularySettings(tokenizer=imported.fingerprint)
    vocabulary = build_vocabulary(settings, small_corpus, small_context)
    assert vocabulary.fingerprint == imported.fingerprint
    chosen = ExampleSettings(max_tokens=64, shard_tokens=4000)
    examples = build_examples(chosen, small_corpus, vocabulary, small_context)
    assert examples.statistics["vocab_size"] == imported.statistics["size"]


def test_a_folder_that_says_its_case_is_taken_as_it_is(
    small_vocabulary, small_corpus, small_context, tmp_path
):
    load_tokenizer(small_vocabulary).save(tmp_path / "tokenizer")
    settings = VocabularySettings(tokenizer=str(tmp_path / "tokenizer"))
    vocabulary = build_vocabulary(settings, small_corpus, small_context)
    assert load_tokenizer(vocabulary).tokens == load_tokenizer(small_vocabulary).tokens
    missing = VocabularySettings(tokenizer=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere does not exist; name"):
        build_vocabulary(missing, small_corpus, small_context)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(UserError, match="both say which vocabulary"):
        read_recipe("demo", ["vocabulary.tokenizer=x", "vocabulary.encoder=y"])
    assert read_recipe("continue", ["vocabulary.tokenizer=x"]).tokenizer.encoder is None


def test_added_tokens_are_whole_in_examples_and_in_the_model_that_goes_on(
    small_vocabulary, small_corpus, small_context, tmp_path
):
    base = load_tokenizer(small_vocabulary)
    tokenizer = WordPieceTokenizer(base.tokens, base.normalization, (USER, PHRASE))
    torch.manual_seed(3)
    model = PretrainingModel(encoder_config("tiny", tokenizer.vocab_size))
    export_model(tmp_path / "model", model, tokenizer)
    encoder = existing_encoder(str(tmp_path / "model"), small_context)
    assert encoder.statistics["added_tokens"] == 2
    settings = VocabularySettings(encoder=encoder.fingerprint)
    vocabulary = build_vocabulary(settings, small_corpus, small_context)
    read = load_tokenizer(vocabulary)
    assert read.tokens == tokenizer.tokens
    assert read.added_tokens == tokenizer.added_tokens
    texts = ["<user> the sum of the array", "a<user>", "Of THE"]
    ids, counts = SentenceEncoder(read).encode(pa.array(texts))
    assert ids.tolist() == [index for text in texts for index in read.encode(text)]
    assert counts.tolist() == [len(read.encode(text)) for text in texts]
    assert (ids == read.token_to_id("<user>")).sum() == 2
    assert (ids == read.token_to_id("of the")).sum() == 2
    assert not read.maskable().is_maskable[read.token_to_id("<user>")]
    chosen = ExampleSettings(max_tokens=64, shard_tokens=4000)
    examples = build_examples(chosen, small_corpus, vocabulary, small_context)
    settings = settings_for(PretrainingSettings(), encoder, examples, vocabulary)
    model = continued_model(settings, encoder, examples)
    before = load_model(encoder.local_folder()).encoder.embeddings.token
    assert torch.equal(model.encoder.embeddings.token, before)


def test_a_vocabulary_that_is_learned_keeps_its_name() -> None:
    assert VocabularySettings().named().keys().isdisjoint({"encoder", "tokenizer"})
