"""What the vocabulary stage can be told."""

from pydantic import Field

from bert_core.vocabulary import Normalization
from pipelines.core.settings import Settings


class VocabularySettings(Settings):
    """Size and kind of the WordPiece vocabulary."""

    size: int = Field(default=8192, ge=100, le=2**31, description="Number of pieces, all in all.")
    lowercase: bool = Field(default=True, description="Uncased: lower case, and no accents.")
    strip_accents: bool | None = Field(
        default=None, description="Remove accents; left out, it goes with lower case as published."
    )
    split_chinese_characters: bool = Field(
        default=True, description="Make every Chinese character a word."
    )
    num_unused: int = Field(
        default=0, ge=0, description="Reserved [unused] pieces, for tokens added later."
    )
    min_frequency: int = Field(
        default=2, ge=1, description="Least number of occurrences of a learned piece."
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
    language_smoothing: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description=(
            "Exponent on each source's share of the words; below 1 (multilingual BERT: 0.7) small "
            "languages count for more. Sources are languages then."
        ),
    )

    @property
    def normalization(self) -> Normalization:
        """What happens to a text before it is cut into pieces."""
        return Normalization(
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_chinese_characters=self.split_chinese_characters,
        )
