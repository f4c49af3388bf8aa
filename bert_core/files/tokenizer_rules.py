"""Whether a published tokenizer follows BERT's rules; ValueError if it does not."""

from pathlib import Path
from typing import Any, Final

from bert_core.files.json_files import entry, read_optional_json

# Classes whose rules for texts are BERT's: some published BERTs name their descendants' ones.
_CLASSES: Final = frozenset(
    (
        "BertTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
        "LayoutLMTokenizer", "MobileBertTokenizer", "RetriBertTokenizer", "SqueezeBertTokenizer",
        "PreTrainedTokenizer", "TokenizersBackend",
    )
)  # fmt: skip
# Settings of a tokenizer that change what tokens come out, and the values that do not.
_PUBLISHED: Final = {
    "do_basic_tokenize": (True, None),
    "never_split": ([], None),
    "split_special_tokens": (False, None),
    "wordpieces_prefix": ("##", None),
    "auto_map": ({}, None),
}
_OF_WORDS: Final = ("word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs",
                    "sudachi_kwargs", "jumanpp_kwargs")  # fmt: skip
_MODEL: Final = {
    "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
}  # fmt: skip
_CLS: Final = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
_FIRST: Final = [_CLS, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
_SECOND: Final = [{"Sequence": {"id": "B", "type_id": 1}},
                  {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]  # fmt: skip


def check_tokenizer_class(folder: Path, settings: dict[str, Any]) -> None:
    """Return where the settings in `folder` name BERT's tokenizer or none.

    Raises ValueError, naming the file, for another class of tokenizer, for one that cuts a text
    into words by a dictionary first (Japanese), and for settings that change the rules.
    """
    path, config_path = folder / "tokenizer_config.json", folder / "config.json"
    for where, values in ((path, settings), (config_path, read_optional_json(config_path))):
        name = entry(values, "tokenizer_class", str, where)
        words = entry(values, "word_tokenizer_type", str, where)
        is_segmented = words not in (None, "basic")
        if is_segmented or (name is not None and "Japanese" in name):
            raise ValueError(
                f"{where} must name a tokenizer that reads raw text, found {name or 'one'} with "
                f"the word segmenter {words or 'of a dictionary'}, which comes before the "
                "vocabulary and is not read here; split the texts into words with it yourself, or "
                "take a model without one"
            )
        if name is not None and name.removesuffix("Fast") not in _CLASSES:
            raise ValueError(
                f"{where} must name BERT's tokenizer, found {name}; others have other rules and "
                "cannot be read here"
            )
    for name in _OF_WORDS:
        if settings.get(name) not in (None, "basic", "wordpiece"):
            raise ValueError(
                f"{path} must leave {name} out, which comes before the vocabulary and is not read "
                f"here, found {settings[name]!r:.80}"
            )
    for name, published in _PUBLISHED.items():
        if settings.get(name) not in published:
            raise ValueError(
                f"{path} must leave {name} as published ({published[0]!r}), found "
                f"{settings[name]!r:.80}"
            )


def check_rules(whole: dict[str, Any], path: Path) -> None:
    """Return where `whole`, the contents of the `tokenizer.json` at `path`, are BERT's rules.

    Raises ValueError, naming the file, for another model, another normalizer, other words or other
    special tokens around a text.
    """
    model = entry(whole, "model", dict, path) or {}
    kind = model.get("type")
    if kind != "WordPiece" and not (kind is None and "max_input_chars_per_word" in model):
        raise ValueError(
            f"{path} must hold a WordPiece model, found {kind}; "
            "other tokenizers have other rules and cannot be read here"
        )
    vocabulary = entry(model, "vocab", dict, path)
    if not vocabulary:
        raise ValueError(f"{path} has no tokens of a vocabulary")
    for token, index in vocabulary.items():
        if not isinstance(index, int) or isinstance(index, bool):
            raise ValueError(f"{path} must give the token {token!r:.80} an id, found {index!r:.80}")
    for name, published in _MODEL.items():
        if model.get(name, published) != published:
            raise ValueError(
                f"{path} must say {name}={published!r}, as published, found {model[name]!r:.80}"
            )
    normalizer = entry(whole, "normalizer", dict, path) or {}
    if normalizer.get("type") != "BertNormalizer" or normalizer.get("clean_text", True) is not True:
        raise ValueError(
            f"{path} must normalize as BERT does (BertNormalizer, clean_text), "
            f"found {normalizer.get('type')}"
        )
    words = entry(whole, "pre_tokenizer", dict, path) or {}
    if words.get("type") != "BertPreTokenizer":
        raise ValueError(
            f"{path} must look for words as BERT does (BertPreTokenizer), found {words.get('type')}"
        )
    _check_template(entry(whole, "post_processor", dict, path), path)


def _check_template(processor: dict[str, Any] | None, path: Path) -> None:
    """A file without one leaves it to BERT, which puts [CLS] and [SEP] around a text."""
    if processor is None:
        return
    if processor.get("type") == "TemplateProcessing":
        pair = _FIRST + _SECOND
        is_published = (processor.get("single"), processor.get("pair")) == (_FIRST, pair)
    else:
        listed = [processor.get(name) for name in ("cls", "sep")]
        ends = [end[0] if isinstance(end, list) and end else None for end in listed]
        is_published = processor.get("type") == "BertProcessing" and ends == ["[CLS]", "[SEP]"]
    if not is_published:
        raise ValueError(
            f"{path} must put [CLS] and [SEP] around texts and pairs as BERT does, found another "
            f"{processor.get('type')}"
        )
