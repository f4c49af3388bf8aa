"""The settings of every training run: its optimizer, its schedule, its cadence, its micro-batches.

And the peak learning rate that `auto` means: it follows the encoder's size. A small encoder learns
at twenty times the rate of BERT-base, and at the small one's rate BERT-base loses what it knows.
Each rule is a line through two encoders, in the logarithms of layers x width and rate, for steps of
about 32 examples and AdamW (Muon's steps are scaled to AdamW's). Measured on an encoder between the
two in docs/decisions/0036.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings, Settings
from pipelines.stage import Observer, send_note

if TYPE_CHECKING:
    from bert_core.config import EncoderConfig

ENDLESS: Final = 10**9  # steps of a training run whose length is not known yet
Schedule = Literal["linear", "cosine", "constant", "warmup_stable_decay"]
Momentum = Annotated[float, Field(ge=0, lt=1)]


PeakRate = Annotated[float, Field(gt=0, le=1)] | Literal["auto"]


class TrainingSettings(Settings):
    """The optimizer, its schedule and the cadence of a training run."""

    optimizer: Literal["adamw", "lamb", "muon"] = Field(
        default="adamw",
        description="adamw; lamb: for very large steps; muon: for the matrices inside the layers, "
        "adamw for the rest.",
    )
    learning_rate: PeakRate = Field(
        default=1e-4, description="Peak learning rate, reached after the warm-up."
    )
    warmup_fraction: float = Field(
        default=0.1, ge=0, le=1, description="Share of the steps over which the rate rises."
    )
    schedule: Schedule = Field(
        default="linear",
        description="How the learning rate falls after the warm-up; warmup_stable_decay: it stays "
        "at its peak and falls over the last steps alone.",
    )
    decay_fraction: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Share of the steps, at the end, over which warmup_stable_decay falls to zero.",
    )
    betas: tuple[Momentum, Momentum] = Field(
        default=(0.9, 0.999),
        description="Decay of the running mean and of the running square of the gradients (adamw, "
        "lamb).",
    )
    muon_momentum: Momentum = Field(
        default=0.95, description="Decay of muon's running mean of the gradients."
    )
    weight_decay: float = Field(
        default=0.01, ge=0, le=1, description="Decoupled weight decay; none on biases and norms."
    )
    max_gradient_norm: float = Field(
        default=1.0, gt=0, description="Gradients are scaled down to this global norm."
    )
    spike_factor: float | None = Field(
        default=100.0,
        gt=1,
        description="A step whose gradient norm is more than so many times the median of the last "
        "64 (or so many times max_gradient_norm, where that is larger) is skipped, like one that "
        "is not finite; empty: only those.",
    )
    max_skipped_steps: int = Field(
        default=5,
        ge=1,
        le=10**6,
        description="After this many skipped steps in a row, training ends with a diagnosis.",
    )
    exchange_dtype: Literal["float32", "bf16"] = Field(
        default="float32",
        description="Number format in which gradients travel between workers; bf16 halves the "
        "bytes and rounds them, but not where one worker trains alone: nothing travels then.",
    )
    dropout: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout on hidden states and attention."
    )
    precision: Literal["auto", "bf16", "float32"] = Field(
        default="auto",
        description="Arithmetic of matrix products; auto: bf16 where the machine computes in it. "
        "Weights stay float32.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**31, description="Seed of initialization, order, masks and dropout."
    )
    log_every_steps: int = Field(
        default=10,
        ge=1,
        le=10**9,
        description="Optimizer steps between two points of the training curve.",
    )
    checkpoint_every_steps: int = Field(
        default=200,
        ge=1,
        le=10**9,
        description="Optimizer steps between two checkpoints: what a lost machine costs at most.",
    )

    @model_validator(mode="after")
    def _automatic_rates_are_of_adamw(self) -> Self:
        if self.learning_rate == "auto" and self.optimizer == "lamb":
            raise ValueError(
                "learning_rate=auto is for adamw and muon; set a number for optimizer=lamb"
            )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit:
    """How an optimizer step is cut into micro-batches, the units that ranks share."""

    section: str  # of the recipe, where the two settings are
    global_batch_size: int
    micro_batch_size: int
    prefix: str = ""  # of the two settings' names, "short_" for short_global_batch_size

    @property
    def num_micro_batches(self) -> int:
        """More ranks than these would have nothing to do."""
        return -(-self.global_batch_size // self.micro_batch_size)


def least_workers(runtime: RuntimeSettings) -> int:
    """The least number of workers to begin with: of a range its lower end, of auto 1."""
    count = runtime.training_workers
    if count == "auto":
        return 1
    return count[0] if isinstance(count, tuple) else count


def check_ranks(runtime: RuntimeSettings, split: BatchSplit) -> None:
    """Raise UserError if a step has fewer micro-batches than the least workers asked for."""
    least = least_workers(runtime)
    if least > split.num_micro_batches:
        step, part = (f"{split.prefix}{name}_batch_size" for name in ("global", "micro"))
        raise UserError(
            f"{least} training workers cannot share the {split.num_micro_batches} micro-batches of "
            f"a step of {split.section} ({step}={split.global_batch_size}, "
            f"{part}={split.micro_batch_size}); set runtime.training_workers to at most "
            f"{split.num_micro_batches}, lower {split.section}.{part} or raise "
            f"{split.section}.{step}"
        )


Use = Literal["pretraining", "finetuning"]


# (BERT-tiny's, BERT-base's). Fine-tuning: Devlin et al. (2019), appendix A.3, has 5e-5 to 2e-5 for
# base; pretraining: going on, Gururangan et al. (2020) and Sun et al. (2019) have 1e-4 to 5e-5.
_RATES: Final[Mapping[Use, tuple[float, float]]] = MappingProxyType(
    {"pretraining": (5e-4, 5e-5), "finetuning": (1e-3, 5e-5)}
)
_TINY, _BASE = 2 * 128, 12 * 768
_TOO_HIGH: Final = 4.0  # times the automatic rate


def automatic_rate(use: Use, encoder: "EncoderConfig") -> float:
    """The peak rate at which `encoder` is pretrained further, or fine-tuned; two digits.

    Below BERT-tiny's size it is BERT-tiny's.
    """
    tiny, base = _RATES[use]
    size = max(_TINY, encoder.num_layers * encoder.hidden_size)
    slope = math.log(base / tiny) / math.log(_BASE / _TINY)
    return float(f"{tiny * (size / _TINY) ** slope:.1e}")


def resolved_rate(
    rate: float | Literal["auto"], use: Use, encoder: "EncoderConfig", observe: Observer
) -> float:
    """`rate`, or what `auto` means for this encoder, with a note to `observe`.

    A rate that is far too high to keep what an encoder has learned in pretraining gets a note, too.
    """
    automatic = automatic_rate(use, encoder)
    if isinstance(rate, float):
        if use == "pretraining" and rate > _TOO_HIGH * automatic:
            send_note(
                observe,
                use,
                f"{use}: learning_rate={rate:g} is {rate / automatic:.0f} times what auto sets for "
                f"the encoder to continue from ({automatic:g}), which may lose what it has learned "
                f"(set {use}.learning_rate=auto)",
            )
        return rate
    send_note(
        observe,
        use,
        f"{use}: learning_rate=auto is {automatic:g} for an encoder of {encoder.num_layers} layers "
        f"of width {encoder.hidden_size}",
    )
    return automatic
