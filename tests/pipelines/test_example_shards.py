"""What shards of examples hold, and who may read them."""

import pytest

from pipelines.errors import UserError
from pipelines.stages.corpus.settings import CorpusSettings, TextFiles
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from tests.pipelines.small_data import invented_text


def test_shards_hold_equally_many_tokens(small_examples):
    for split in ("train", "heldout"):
        tokens = [
            small_examples.manifest.files[name].figures["tokens"]
            for name in small_examples.names(f"{split}-")
        ]
        assert max(tokens) - min(tokens) <= 2 * 64  # to the example
    assert small_examples.statistics["train"]["shards"] > 3


def test_examples_that_are_longer_than_a_shard_get_one_each(
    small_corpus, small_vocabulary, small_context
):
    settings = ExampleSettings(objective="mlm", max_tokens=2048, shard_tokens=1000)
    examples = build_examples(settings, small_corpus, small_vocabulary, small_context)
    names = examples.names("train-")
    counts = [examples.manifest.files[name].figures["examples"] for name in names]
    assert min(counts) >= 1
    assert sum(counts) == examples.statistics["train"]["examples"]
    assert examples.statistics["train"]["shards"] == len(counts) > 1


def test_documents_of_one_sentence_are_refused_where_pairs_are_asked_for(
    tmp_path, small_vocabulary, small_context
):
    """A blank line after every sentence: no sentence is followed by another one."""
    sentences = [invented_text(number, 1) for number in range(80)]
    (tmp_path / "a.txt").write_text("\n\n".join(sentences))
    source = TextFiles(paths=(str(tmp_path / "a.txt"),), layout="blank_line")
    corpus = build_corpus(CorpusSettings(sources=(source,)), small_context)
    pairs, alone = ExampleSettings(max_tokens=64), ExampleSettings(max_tokens=64, objective="mlm")
    with pytest.raises(UserError, match=r"100% of the sentence pairs would be random.*--layout"):
        build_examples(pairs, corpus, small_vocabulary, small_context)
    assert build_examples(alone, corpus, small_vocabulary, small_context)
