"""Tokens that were added to a tokenizer stay whole, as in the reference, or are refused."""

import json
from pathlib import Path

import pytest
import transformers
from tokenizers import AddedToken as Added

from bert_core.vocabulary import SPECIAL_TOKENS, Normalization, WordPieceTokenizer

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
CAPITALS = [letter.upper() for letter in LETTERS]
TOKENS = [
    *SPECIAL_TOKENS, "[unused1]", "<", ">", "[", "]", "/", "!", "-", "é", "中", *LETTERS, *CAPITALS,
    *(f"##{letter}" for letter in LETTERS + CAPITALS), "##1", "##9", "1", "9", "the",
]  # fmt: skip
TEXTS = [
    "<user> asks the [ENT] man", "<USER>asks[ent]  the", "a<user>b [ENT][ENT]", "covid19 and Covid",
    "COVID covids xcovid the-covid", "new york  New York", "[unused1] and [UNUSED1]", "", "   ",
    "the 中<user>中 é É", "< user >", "<use", "tab\t<user>\tend",
]  # fmt: skip

WAYS = {
    "special": [Added("<user>", special=True), Added("[ENT]", special=True)],
    "plain": ["<user>", "[ENT]", "covid"],
    "normalized": [Added("<USER>", normalized=True), Added("Covid", normalized=True)],
    "raw": [Added("covid", normalized=False), Added("New York", normalized=False)],
    "words": [Added("covid", single_word=True), Added("<user>", single_word=True)],
    "stripped": [Added("<user>", lstrip=True, rstrip=True), Added("[ENT]", rstrip=True)],
    "two words": [Added("new york"), "new"],
    "known": [Added("[unused1]", special=True), Added("the", normalized=False)],
}


def saved_by_the_reference(folder: Path, tokens: list, *, lowercase: bool) -> Path:
    WordPieceTokenizer(TOKENS, Normalization(lowercase=lowercase)).save(folder / "plain")
    reference = transformers.AutoTokenizer.from_pretrained(folder / "plain")
    reference.add_tokens(tokens)
    reference.save_pretrained(folder / "theirs")
    return folder / "theirs"


def assert_same(ours: WordPieceTokenizer, folder: Path, texts: list[str] = TEXTS) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    assert len(reference) == ours.vocab_size
    added = reference.added_tokens_decoder  # as they were given; elsewhere they are normalized
    theirs = [
        added[index].content if index in added else reference.convert_ids_to_tokens(index)
        for index in range(len(reference))
    ]
    assert theirs == list(ours.tokens)
    for text in texts:
        expected = reference(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ours.encode(text) == expected["input_ids"], text
        assert ours.encode_with_offsets(text) == (expected["input_ids"], expected["offset_mapping"])
    assert ours.encode_batch(texts) == [ours.encode(text) for text in texts]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_they_are_found_as_the_reference_finds_them(tmp_path, way, lowercase):
    folder = saved_by_the_reference(tmp_path, WAYS[way], lowercase=lowercase)
    ours = WordPieceTokenizer.from_directory(folder)
    assert_same(ours, folder)
    ours.save(tmp_path / "ours")
    assert_same(ours, tmp_path / "ours")
    again = WordPieceTokenizer.from_directory(tmp_path / "ours")
    assert (again.tokens, again.added_tokens) == (ours.tokens, ours.added_tokens)
    assert again.files() == ours.files()


OLDER = {
    "a list of special ones": {
        "added_tokens.json": {"<user>": len(TOKENS), "covid": len(TOKENS) + 1},
        "special_tokens_map.json": {"additional_special_tokens": ["<user>"]},
    },
    "in the settings": {
        "added_tokens.json": {"[ENT]": len(TOKENS)},
        "tokenizer_config.json": {"do_lower_case": True, "additional_special_tokens": ["[ENT]"]},
    },
    "of the vocabulary": {
        "tokenizer_config.json": {
            "do_lower_case": True, "additional_special_tokens": ["[unused1]"],
        },
    },
    "without an id": {
        "tokenizer_config.json": {
            "do_lower_case": True, "additional_special_tokens": ["<user>", "[ENT]"],
        },
    },
    "a role": {
        "tokenizer_config.json": {"do_lower_case": True, "bos_token": "<user>"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OLDER)
def test_tokens_that_no_tokenizer_json_describes_are_refused(tmp_path, name):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    for file, values in OLDER[name].items():
        (tmp_path / file).write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"adds tokens such as .* has no tokenizer\.json"):
        WordPieceTokenizer.from_directory(tmp_path)
