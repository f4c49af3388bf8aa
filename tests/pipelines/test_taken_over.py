"""A vocabulary that was made elsewhere: taken over."""

from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.registry.exchange import import_path
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary, load_tokenizer


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


def test_a_vocab_txt_is_imported_first_since_it_does_not_say_its_case(
    listed, small_corpus, small_context
):
    with pytest.raises(UserError, match=r"bertsmith import .*vocab.txt --uncased` \(or --cased\)"):
        build_vocabulary(VocabularySettings(tokenizer=str(listed)), small_corpus, small_context)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(UserError, match="both say which vocabulary"):
        read_recipe("demo", ["vocabulary.tokenizer=x", "vocabulary.encoder=y"])
    assert read_recipe("continue", ["vocabulary.tokenizer=x"]).tokenizer.encoder is None
