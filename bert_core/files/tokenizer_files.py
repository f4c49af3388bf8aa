"""What lies in the folder of a published tokenizer: its pieces and its settings."""

from dataclasses import dataclass
from pathlib import Path

from bert_core.files.json_files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """What happens to a text before it is cut into pieces."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: as published, together with lowercase
    split_chinese_characters: bool = True


def read_pieces(folder: Path) -> list[str]:
    """The pieces in the order of their ids, from `vocab.txt` or else `tokenizer.json`.

    Raises ValueError where there is neither, or another kind of tokenizer.
    """
    vocabulary = folder / "vocab.txt"
    if vocabulary.is_file():
        text = vocabulary.read_text(encoding="utf-8")
        # Only \n ends a line: some vocabularies hold pieces such as U+2028.
        return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ValueError(f"{folder} must hold vocab.txt or tokenizer.json, found neither")
    model = read_json(tokenizer)["model"]
    if model.get("type") != "WordPiece":
        raise ValueError(
            f"{tokenizer} must hold a WordPiece model, found {model.get('type')}; "
            "other tokenizers have other rules and cannot be read here"
        )
    return sorted(model["vocab"], key=model["vocab"].__getitem__)


def read_normalization(folder: Path) -> Normalization | None:
    """The settings of `tokenizer_config.json` or else `tokenizer.json`; None without them.

    Raises ValueError where `tokenizer.json` normalizes otherwise than BERT does.
    """
    settings, tokenizer = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if settings.is_file():
        found = read_json(settings)
        names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
        if "do_lower_case" in found:
            return _normalization(*(found.get(name) for name in names))
    if tokenizer.is_file():
        found = read_json(tokenizer).get("normalizer") or {}
        if found.get("type") != "BertNormalizer":
            raise ValueError(
                f"{tokenizer} must normalize as BERT does (BertNormalizer), "
                f"found {found.get('type')}"
            )
        return _normalization(
            *(found.get(name) for name in ("lowercase", "strip_accents", "handle_chinese_chars"))
        )
    return None


def _normalization(
    lowercase: bool | None, strip_accents: bool | None, split_chinese: bool | None
) -> Normalization:
    return Normalization(
        lowercase=True if lowercase is None else lowercase,
        strip_accents=strip_accents,
        split_chinese_characters=True if split_chinese is None else split_chinese,
    )
