"""Configurations of encoders and embeddings, and the named sizes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Final, Literal, Self, TypeVar, get_args

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Sizes and options of one encoder; raises ValueError for impossible values.

    The defaults are those of the published BERT-base (Devlin et al., 2019). With `causal` a token
    reads only itself and what is left of it. `classifier_dropout` is the rate of the heads that
    label something; None: that of hidden states.
    """

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    causal: bool = False
    classifier_dropout: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "num_layers", "num_attention_heads",
            "intermediate_size", "max_position_embeddings", "type_vocab_size",
        ):  # fmt: skip
            check_whole(name, getattr(self, name), 1)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                "hidden_size must be a multiple of num_attention_heads, "
                f"got {self.hidden_size} and {self.num_attention_heads}"
            )
        dropouts = ["hidden_dropout", "attention_dropout"]
        dropouts += [] if self.classifier_dropout is None else ["classifier_dropout"]
        for name in dropouts:
            check_number(name, getattr(self, name), "lie in [0, 1)")
        for name in ("layer_norm_eps", "initializer_range"):
            check_number(name, getattr(self, name), "be positive and finite")
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal must be true or false, got {self.causal!r}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON; without `classifier_dropout` if None."""
        values = asdict(self)
        if self.classifier_dropout is None:
            del values["classifier_dropout"]  # as it was written before there was one
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config that `to_dict` described; raises ValueError for unknown or missing entries."""
        return _built(cls, values)


Pooling = Literal["mean", "cls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """How a text becomes one vector; raises ValueError for impossible values.

    `pooling` takes of the hidden states their mean, or that of [CLS]. Texts are cut to
    `max_tokens` with the special ones (None: to what the encoder reads), and lower-cased first
    with `lowercase`, whatever the tokenizer does then.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    max_tokens: int | None = None
    lowercase: bool = False

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, get_args(Pooling))
        for name in ("normalize", "lowercase"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens, 3)  # one between the two special ones

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What `to_dict` described; raises ValueError for unknown entries."""
        return _built(cls, values)


def _built(kind: type[T], values: Mapping[str, Any]) -> T:
    try:
        return kind(**values)
    except TypeError as error:  # of an entry that is unknown or missing
        raise ValueError(str(error).replace(".__init__()", "")) from error


_RANGES: dict[str, Callable[[float], bool]] = {
    "be positive and finite": lambda value: 0 < value < math.inf,
    "be finite and not negative": lambda value: 0 <= value < math.inf,
    "lie in [0, 1)": lambda value: 0 <= value < 1,
    "lie in (0, 1]": lambda value: 0 < value <= 1,
}


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if int(value) < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: object, range_of: str) -> None:
    """Raise ValueError unless `value` is a number in one of the ranges that have a name here."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not _RANGES[range_of](float(value)):
        raise ValueError(f"{name} must {range_of}, got {value}")


def check_choice(name: str, value: object, words: Sequence[str]) -> None:
    """Raise ValueError unless `value` is one of `words`."""
    if value not in words:
        raise ValueError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")


# Layers, hidden size and attention heads (Devlin et al., 2019; Turc et al., 2019). The
# feed-forward layer is four times as wide as the hidden state.
SIZES: Final = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def size_of(config: EncoderConfig) -> str | None:
    """The name of an encoder's size; None for one that is not published."""
    shape = config.num_layers, config.hidden_size, config.num_attention_heads
    return next((name for name, published in SIZES.items() if published == shape), None)


def encoder_config(size: str, vocab_size: int, **overrides: Any) -> EncoderConfig:
    """The encoder of a named size; `overrides` replace single entries.

    Raises ValueError for another name, or entries that are impossible.
    """
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    num_layers, hidden_size, num_attention_heads = SIZES[size]
    return EncoderConfig.from_dict(
        {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_attention_heads": num_attention_heads,
            "intermediate_size": 4 * hidden_size,
            **overrides,
        }
    )
