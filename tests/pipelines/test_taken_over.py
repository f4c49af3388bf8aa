"""A vocabulary that was made elsewhere: taken over, extended, and read with its added tokens."""

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
    Normalization,
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
from pipelines.stages.vocabulary.learning import extended
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary, load_tokenizer
from pipelines.train.imported_models import existing_encoder

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
    settings = VocabularySettings(tokenizer=str(tmp_path / "tokenizer"), added_words=20)
    vocabulary = build_vocabulary(settings, small_corpus, small_context)
    before = load_tokenizer(small_vocabulary)
    assert load_tokenizer(vocabulary).tokens[: before.vocab_size] == before.tokens
    assert vocabulary.statistics["size"] == before.vocab_size + 20
    missing = VocabularySettings(tokenizer=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere does not exist; name"):
        build_vocabulary(missing, small_corpus, small_context)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(UserError, match="both say which vocabulary"):
        read_recipe("demo", ["vocabulary.tokenizer=x", "vocabulary.encoder=y"])
    recipe = read_recipe("continue", ["vocabulary.tokenizer=x", "vocabulary.added_words=5"])
    assert recipe.tokenizer.encoder is None


def test_added_tokens_are_whole_in_examples_and_grow_with_the_embeddings(
    small_vocabulary, small_corpus, small_context, tmp_path
):
    base = load_tokenizer(small_vocabulary)
    tokenizer = WordPieceTokenizer(base.tokens, base.normalization, (USER, PHRASE))
    torch.manual_seed(3)
    model = PretrainingModel(encoder_config("tiny", tokenizer.vocab_size))
    export_model(tmp_path / "model", model, tokenizer)
    encoder = existing_encoder(str(tmp_path / "model"), small_context)
    assert encoder.statistics["added_tokens"] == 2
    wanted = VocabularySettings(encoder=encoder.fingerprint, added_words=10)
    vocabulary = build_vocabulary(wanted, small_corpus, small_context)
    read = load_tokenizer(vocabulary)
    assert read.tokens[: tokenizer.vocab_size] == tokenizer.tokens
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
    grown = continued_model(settings, encoder, examples)
    before = load_model(encoder.local_folder()).encoder.embeddings.token
    assert torch.equal(grown.encoder.embeddings.token[: len(before)], before)
    assert len(grown.encoder.embeddings.token) == read.vocab_size


def test_tokens_do_not_follow_a_token_that_words_could_then_be_cut_into(small_vocabulary):
    tokens = load_tokenizer(small_vocabulary).tokens
    alone = AddedToken(content="covid", single_word=True)
    tokenizer = WordPieceTokenizer(tokens, Normalization(), (alone,))
    with pytest.raises(UserError, match="cannot follow the added token 'covid'"):
        extended(tokenizer, {"xylophonic": 9, "zyzzyva": 9}, num_tokens=1, min_frequency=1)


def test_a_vocabulary_that_is_learned_keeps_its_name() -> None:
    assert VocabularySettings().named().keys().isdisjoint({"encoder", "added_words"})
