"""Pairs that are too long are cut as the `tokenizers` library cuts them."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from bert_core.inference.texts import encode_texts
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer

MOST = 12  # tokens of a text, and of what is left beside the special ones
FIRST, SECOND = (" ".join(f"{letter}{number}" for number in range(MOST)).split() for letter in "ab")
TOKENS = [*SPECIAL_TOKENS, *FIRST, *SECOND]


@pytest.fixture(scope="module")
def reference():
    """A fast tokenizer of whole words, with BERT's special tokens around them."""
    ids = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


@pytest.mark.parametrize("budget", range(1, MOST + 1))
def test_pairs_of_all_lengths_are_cut_as_fast_tokenizers_cut_them(reference, budget):
    lengths = [(a, b) for a in range(MOST + 1) for b in range(MOST + 1)]
    pairs = [(" ".join(FIRST[:a]), " ".join(SECOND[:b])) for a, b in lengths]
    found = encode_texts(WordPieceTokenizer(TOKENS), pairs, budget + 3)
    reference.enable_truncation(budget + 3, strategy="longest_first")
    expected = reference.encode_batch(pairs)
    assert found.sequences == [each.ids for each in expected]
    assert found.segment_b_start == [each.type_ids.index(1) for each in expected]
    assert found.num_truncated == sum(a + b > budget for a, b in lengths)


def test_the_text_of_many_pairs_is_encoded_once(monkeypatch):
    """A question of 100 kB with 10,000 choices would take their product in time and memory."""
    tokenizer, encoded = WordPieceTokenizer(TOKENS), []
    encode_batch = tokenizer.encode_batch
    monkeypatch.setattr(
        tokenizer, "encode_batch", lambda texts: encoded.extend(texts) or encode_batch(texts)
    )
    pairs = [(first, second) for first in ("a b", "b a") for second in "aba"]
    sequences = encode_texts(tokenizer, pairs, 16).sequences
    assert encoded == ["a b", "b a", *"abaaba"]
    assert sequences == [encode_texts(tokenizer, [pair], 16).sequences[0] for pair in pairs]
