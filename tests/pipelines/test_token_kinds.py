"""Evaluation by kind of token: what counts as what, and figures that add up to the whole."""

import math

import numpy as np
import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import LanguageModel, PretrainingModel
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.baselines import KINDS, token_counts, token_kinds
from pipelines.stages.pretraining.figures import HeldoutExamples, pretraining_figures
from pipelines.stages.vocabulary.stage import load_tokenizer


def tokens_by_kind(counts: dict[str, int]) -> dict[str, set[str]]:
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *counts])
    table = np.array([*(10**6 for _ in SPECIAL_TOKENS), *counts.values()])
    kinds = token_kinds(tokenizer, table)
    return {
        kind: {tokenizer.tokens[index] for index in np.flatnonzero(of)}
        for kind, of in kinds.items()
    }


def test_half_of_the_running_words_are_frequent_and_the_rest_content():
    found = tokens_by_kind({"the": 40, "of": 20, "whale": 15, "sea": 15, "ship": 10, ".": 900})
    assert found["frequent"] == {"the", "of", "[UNK]"}  # 40 are less than half, 60 are not
    assert found["content"] == {"whale", "sea", "ship"}
    assert found["punctuation"] == {".", "[CLS]", "[SEP]"}


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        ("।", "punctuation"), ("«", "punctuation"), ("+", "punctuation"), ("。", "punctuation"),
        ("##ing", "content"), ("##s", "content"), ("7", "content"), ("水", "content"),
    ],
)  # fmt: skip
def test_a_rule_for_any_script(token, kind):
    found = tokens_by_kind({"the": 100, token: 99})
    assert [each for each in KINDS if token in found[each]] == [kind]


@pytest.mark.parametrize("objective", ["mlm_nsp", "clm"])
def test_kinds_add_up_to_the_whole_and_stand_beside_their_baselines(
    objective, small_corpus, small_vocabulary, small_context
):
    settings = ExampleSettings(max_tokens=64, shard_tokens=1000, objective=objective)
    examples = build_examples(settings, small_corpus, small_vocabulary, small_context)
    tokenizer = load_tokenizer(small_vocabulary)
    torch.manual_seed(3)
    if objective == "clm":
        model = LanguageModel(encoder_config("tiny", tokenizer.vocab_size, causal=True))
    else:
        model = PretrainingModel(encoder_config("tiny", tokenizer.vocab_size))
    figures = HeldoutExamples(examples, tokenizer, 0, 1).figures(model, 40)
    name = "clm" if objective == "clm" else "mlm"
    shares = {kind: figures[f"baseline/{name}_share/{kind}"] for kind in KINDS}
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) > 0
    for side in ("eval", "baseline"):
        assert figures[f"{side}/{name}_perplexity"] == math.exp(figures[f"{side}/{name}_loss"])
    whole = sum(shares[kind] * figures[f"eval/{name}_accuracy/{kind}"] for kind in KINDS)
    assert whole == pytest.approx(figures[f"eval/{name}_accuracy"])
    beside = {key for key in figures if key.startswith("eval/")} - {"eval/nsp_loss"}
    assert {key.replace("eval/", "baseline/") for key in beside} <= set(figures)
    plain = pretraining_figures(model, ExampleReader(examples, "heldout"), 40)
    assert plain.items() <= figures.items()  # the kinds change no other figure


def test_the_baseline_of_a_kind_is_its_most_frequent_token(small_examples, small_vocabulary):
    tokenizer = load_tokenizer(small_vocabulary)
    counts = token_counts(small_examples, tokenizer.vocab_size)
    kinds = token_kinds(tokenizer, counts)
    reader = ExampleReader(small_examples, "heldout")
    labels = torch.cat([batch.masked_labels for _, batch in evaluation_batches(reader, 4096)])
    torch.manual_seed(3)
    model = PretrainingModel(encoder_config("tiny", tokenizer.vocab_size))
    figures = HeldoutExamples(small_examples, tokenizer, 0, 1).figures(model, len(reader))
    for kind, is_kind in kinds.items():
        most_frequent = max(np.flatnonzero(is_kind), key=lambda index: (counts[index], -index))
        of_kind = labels[torch.from_numpy(is_kind)[labels]]
        expected = (of_kind == int(most_frequent)).double().mean()
        assert figures[f"baseline/mlm_accuracy/{kind}"] == pytest.approx(float(expected))


def test_of_very_many_examples_some_shards_are_counted_the_same_for_any_number_of_ranks(
    small_examples, small_vocabulary
):
    size = small_vocabulary.statistics["size"]
    tokens = small_examples.statistics["train"]["tokens"]
    assert token_counts(small_examples, size).sum() == tokens
    few = {"most_tokens": tokens // 3}
    some = token_counts(small_examples, size, **few)
    assert tokens / 6 < some.sum() < tokens / 2
    shares = [token_counts(small_examples, size, rank, 2, **few) for rank in (0, 1)]
    assert np.array_equal(sum(shares), some)
