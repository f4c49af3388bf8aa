"""Settings of the vocabulary stage."""

from typing import Any, Self

from pydantic import Field, model_validator

from bert_core.vocabulary import Normalization
from pipelines.settings import Settings


class VocabularySettings(Settings):
    """Size and kind of the WordPiece vocabulary, or which one is taken over."""

    size: int = Field(
        default=8192, ge=100, le=2**31, description="Number of tokens in the vocabulary."
    )
    lowercase: bool = Field(default=True, description="Uncased: everything in lower case.")
    strip_accents: bool = Field(
        default=False,
        description="Remove accents and every other combining mark, as published uncased BERTs do: "
        "many languages lose words. Otherwise text is brought into NFC.",
    )
    split_chinese_characters: bool = Field(
        default=True, description="Make every Chinese character a word."
    )
    num_unused: int = Field(
        default=0, ge=0, description="Reserved [unused] entries, for tokens added later."
    )
    min_frequency: int = Field(
        default=2, ge=1, description="Least number of occurrences of a learned token."
    )
    character_coverage: float = Field(
        default=0.99999,
        gt=0,
        le=1,
        description="Share of the text that the vocabulary's characters make up.",
    )
    max_characters: int | None = Field(
        default=None, ge=1, description="Most characters to keep; left out, a quarter of the size."
    )

    encoder: str | None = Field(
        default=None,
        min_length=1,
        description="Take over the tokenizer of this encoder and learn none: a folder, "
        "models:/name@alias or a fingerprint in the store; empty: that of pretraining.encoder, if "
        "there is one.",
    )
    tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="Use this vocabulary and learn none: a folder with a tokenizer that says "
        "whether it is uncased, or the fingerprint of a vocabulary in the store (`bertsmith import "
        "vocab.txt --cased` prints one); empty: learned or the encoder's.",
    )

    def named(self) -> dict[str, Any]:
        """As they name a vocabulary that is learned, whose name is what it always was."""
        return self.model_dump(mode="json", exclude={"encoder", "tokenizer"})

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.encoder is not None and self.tokenizer is not None:
            raise ValueError(
                "vocabulary.encoder and vocabulary.tokenizer both say which vocabulary is taken "
                "over; leave out one of them"
            )
        return self

    @property
    def normalization(self) -> Normalization:
        """What happens to a text before it is cut into tokens."""
        return Normalization(
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_chinese_characters=self.split_chinese_characters,
            compose=not self.strip_accents,
        )
