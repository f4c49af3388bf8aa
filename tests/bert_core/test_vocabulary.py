"""The tokenizer equals the published BERT's, and text can never forge a special token."""

import json
from pathlib import Path

import pytest

from bert_core.vocabulary import Normalization, WordPieceTokenizer

DATA = Path(__file__).parents[3] / "shared" / "data"
TOKENS = [
    "[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", ",", "a", "b", "c", "l",
    "s", "the", "cat", "un", "##able", "##s", "##a", "##l", "café", "cafe", "中", "文",
]  # fmt: skip


def google_tokens(name: str) -> list[str]:
    path = DATA / "vocab" / f"google_{name}_vocab.txt"
    if not path.is_file():
        pytest.skip(f"{path} is not there; it holds Google's published vocabulary")
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(TOKENS)


def pieces_of(tokenizer: WordPieceTokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(index) for index in tokenizer.encode(text)]


def test_words_are_cut_into_the_longest_tokens(tokenizer):
    assert pieces_of(tokenizer, "The cats, unable") == ["the", "cat", "##s", ",", "un", "##able"]
    assert pieces_of(tokenizer, "dog") == ["[UNK]"]


def test_uncased_text_loses_case_and_accents_and_cased_text_keeps_them(tokenizer):
    assert pieces_of(tokenizer, "CAFÉ") == ["cafe"]
    cased = WordPieceTokenizer(TOKENS, Normalization(lowercase=False))
    assert pieces_of(cased, "café") == ["café"]
    assert pieces_of(cased, "CAFÉ") == ["[UNK]"]
    accents = WordPieceTokenizer(TOKENS, Normalization(lowercase=True, strip_accents=False))
    assert pieces_of(accents, "CAFÉ") == ["café"]


def test_chinese_characters_are_words_of_their_own_unless_switched_off(tokenizer):
    assert pieces_of(tokenizer, "中文") == ["中", "文"]
    joined = WordPieceTokenizer(TOKENS, Normalization(split_chinese_characters=False))
    assert pieces_of(joined, "中文") == ["[UNK]"]


@pytest.mark.parametrize("text", ["[CLS]", "a [SEP] b", "[MASK][PAD]", "[UNK]"])
def test_literal_special_tokens_in_text_stay_text(tokenizer, text):
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id}
    assert not special & set(tokenizer.encode(text))
    assert not special & set(tokenizer.encode_batch([text])[0])
    assert not special & set(tokenizer.encode_with_offsets(text)[0])


def test_offsets_point_into_the_text_as_it_was(tokenizer):
    text = "Café,  THE cats"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert [text[begin:end] for begin, end in offsets] == ["Café", ",", "THE", "cat", "s"]


def test_decoding_joins_tokens_and_leaves_special_tokens_out(tokenizer):
    ids = [tokenizer.cls_id, *tokenizer.encode("the cats"), tokenizer.sep_id]
    assert tokenizer.decode(ids) == "the cats"
    assert tokenizer.decode(ids, keep_special=True) == "[CLS] the cats [SEP]"
    assert tokenizer.decode([]) == ""


def test_saving_and_loading_gives_the_same_tokenizer(tmp_path):
    saved = WordPieceTokenizer(TOKENS, Normalization(lowercase=False, strip_accents=True))
    saved.save(tmp_path)
    loaded = WordPieceTokenizer.from_directory(tmp_path)
    assert loaded.tokens == saved.tokens
    assert loaded.normalization == saved.normalization
    assert loaded.files() == saved.files()


def test_either_file_of_a_tokenizer_is_enough(tmp_path, tokenizer):
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert WordPieceTokenizer.from_directory(tmp_path).normalization.lowercase
    (tmp_path / "vocab.txt").unlink()
    assert WordPieceTokenizer.from_directory(tmp_path).tokens == tokenizer.tokens


def test_a_bare_vocabulary_needs_to_be_told_its_case(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    cased = WordPieceTokenizer.from_directory(tmp_path, lowercase=False)
    assert not cased.normalization.lowercase
    with pytest.raises(ValueError, match="must say whether its vocabulary is uncased"):
        WordPieceTokenizer.from_directory(tmp_path)


def test_a_contradiction_about_case_is_refused(tmp_path, tokenizer):
    tokenizer.save(tmp_path)
    with pytest.raises(ValueError, match="lowercase=False was asked for: leave it out"):
        WordPieceTokenizer.from_directory(tmp_path, lowercase=False)


def test_folders_without_a_wordpiece_vocabulary_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"neither vocab\.txt nor tokenizer\.json"):
        WordPieceTokenizer.from_directory(tmp_path, lowercase=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer"):
        WordPieceTokenizer.from_directory(tmp_path, lowercase=True)


OTHER_RULES = {
    "model": {"max_input_chars_per_word": 200},
    "normalizer": {"clean_text": False},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {"single": [{"Sequence": {"id": "A", "type_id": 0}}]},
}


@pytest.mark.parametrize("part", OTHER_RULES)
def test_a_tokenizer_with_other_rules_is_refused(tmp_path, tokenizer, part):
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = json.loads(path.read_text())
    whole[part] |= OTHER_RULES[part]
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"tokenizer\.json must have the rules of BERT's"):
        WordPieceTokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("template", ["BertProcessing", None])
def test_either_way_to_put_special_tokens_around_texts_is_read(tmp_path, tokenizer, template):
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    whole = json.loads(path.read_text())
    own = {"type": template, "sep": ["[SEP]", 4], "cls": ["[CLS]", 3]}
    whole["post_processor"] = None if template is None else own
    whole["truncation"] = {  # as all-MiniLM-L6-v2 is published
        "max_length": 128, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
    }  # fmt: skip
    whole["padding"] = {
        "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    path.write_text(json.dumps(whole))
    assert WordPieceTokenizer.from_directory(tmp_path).files() == tokenizer.files()


ADDED = {
    "tokenizer.json": {"added_tokens": [{
        "id": len(TOKENS), "content": "<user>", "special": True, "single_word": False,
        "lstrip": False, "rstrip": False, "normalized": False,
    }]},
    "added_tokens.json": {"<user>": len(TOKENS)},
    "special_tokens_map.json": {"additional_special_tokens": ["[unused1]"]},
    "tokenizer_config.json": {"bos_token": {"content": "<user>"}},
}  # fmt: skip


@pytest.mark.parametrize("file", ADDED)
def test_tokens_that_were_added_to_the_vocabulary_are_refused(tmp_path, tokenizer, file):
    tokenizer.save(tmp_path)
    if file != "tokenizer.json":
        (tmp_path / "tokenizer.json").unlink()
    path = tmp_path / file
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, **ADDED[file]}))
    with pytest.raises(ValueError, match="adds tokens such as"):
        WordPieceTokenizer.from_directory(tmp_path)


def test_vocabularies_without_special_tokens_or_with_repeated_ones_are_refused():
    with pytest.raises(ValueError, match=r"\[MASK\] not found among 4 tokens"):
        WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    with pytest.raises(ValueError, match="'a' is there twice"):
        WordPieceTokenizer([*TOKENS, "a"])


def test_an_id_outside_the_vocabulary_is_refused(tokenizer):
    with pytest.raises(ValueError, match=rf"\[0, {len(TOKENS)}\), got {len(TOKENS)}"):
        tokenizer.id_to_token(len(TOKENS))


def test_masking_is_told_what_is_special_and_what_continues_a_word(tokenizer):
    maskable = tokenizer.maskable()
    assert [TOKENS[index] for index in (~maskable.is_maskable).nonzero()[0]] == [
        "[PAD]", "[CLS]", "[SEP]",
    ]  # fmt: skip
    assert [TOKENS[index] for index in maskable.continues_word.nonzero()[0]] == [
        "##able", "##s", "##a", "##l",
    ]  # fmt: skip
    drawable = {TOKENS[index] for index in maskable.replacement_ids}
    assert drawable == set(TOKENS) - {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"}


@pytest.mark.parametrize(
    ("name", "lowercase"), [("uncased_en", True), ("cased_en", False), ("zh", True)]
)
def test_ids_equal_the_reference_library_on_real_text(name, lowercase, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = WordPieceTokenizer(google_tokens(name), Normalization(lowercase=lowercase))
    tokenizer.save(tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    for path in sorted((DATA / "corpus" / "multilingual").glob("*.txt")):
        lines = path.read_text(encoding="utf-8").split("\n")
        expected = reference(lines, add_special_tokens=False, verbose=False)["input_ids"]
        assert tokenizer.encode_batch(lines) == expected, path.name
    one = reference("a cat", "the cat")
    assert one["token_type_ids"] == [0] * 4 + [1] * 3
