"""The time of a pretraining step on many GPUs: computing, and the exposed part of the exchange.

A calculation, not a measurement. It follows the step of `bert_core`: micro-batches one after the
other, gradients that are sent in buckets while the last one's backward pass runs, deepest layer
first and the embeddings last (`bert_core/training/exchange.py`), then the update. docs/scaling.md
says where each number comes from.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bert_core.config import EncoderConfig, encoder_config

VOCAB_SIZE = 30_522
_BACKWARD_SHARE = 2 / 3  # of a step's operations: two products for each one in the forward pass
_UPDATE_BYTES = 28  # per parameter: weight, gradient and two moments are read, all but one written
_SAVED_BYTES = 12  # per parameter: weight and two moments in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU, or a CPU core."""

    name: str
    sustained: float  # operations of needed matrix products per second, in a whole step
    memory: float  # bytes per second

    @classmethod
    def measured(cls, name: str, job: "Job", sequences_per_second: float, memory: float) -> "Card":
        """The card that computes `sequences_per_second` of the job, not counting updates."""
        sustained = sequences_per_second * job.operations_per_sequence
        return cls(name=name, sustained=sustained, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links between cards inside nodes, and between nodes."""

    name: str
    cards_per_node: int
    inside: float  # bytes per second of one card, one way
    between: float  # bytes per second of one node, one way
    latency: float = 12e-6  # seconds of an empty exchange, for each doubling of the ranks
    hides: bool = True  # False: the exchange uses the cores that compute, as gloo does

    def all_reduce(self, num_bytes: float, num_ranks: int) -> float:
        """Seconds to sum `num_bytes` over the ranks: inside the nodes, then between them.

        Each card of a node sends its share of the node's sum, so all links of the node are used.
        """
        if num_ranks == 1:
            return 0.0
        cards = min(num_ranks, self.cards_per_node)
        num_nodes = num_ranks // cards
        inside = 2 * (cards - 1) / cards * num_bytes / self.inside
        between = 2 * (num_nodes - 1) / num_nodes * num_bytes / self.between
        return inside + between + self.latency * math.log2(num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job: an encoder with both heads, sequences of full length."""

    size: str
    length: int = 128
    sequences_per_step: int  # over all ranks
    micro_batch: int  # maximum sequences that a card computes at once
    masked_fraction: float = 0.15
    gradient_bytes: int = 4  # per parameter that is sent: 4 in float32, 2 in bf16

    @property
    def config(self) -> EncoderConfig:
        return encoder_config(self.size, VOCAB_SIZE)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one encoder layer."""
        width, wide = self.config.hidden_size, self.config.intermediate_size
        return 4 * (width**2 + width) + 2 * width * wide + wide + width + 4 * width

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings, with the tied table of the vocabulary."""
        config = self.config
        return (VOCAB_SIZE + config.max_position_embeddings + 2 + 2) * config.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the pooler, the next-sentence head and the vocabulary head (untied)."""
        width = self.config.hidden_size
        return 2 * (width**2 + width) + 2 * width + (2 * width + 2) + VOCAB_SIZE

    @property
    def parameters(self) -> int:
        """All parameters."""
        layers = self.config.num_layers * self.layer_parameters
        return self.embedding_parameters + layers + self.head_parameters

    @property
    def operations_per_sequence(self) -> float:
        """Operations of the needed matrix products, as `pretraining_batches.operations` counts."""
        width, wide = self.config.hidden_size, self.config.intermediate_size
        masked = round(self.masked_fraction * self.length)

        def layer(num_queries: int) -> float:
            projections = 2 * width**2 * (num_queries + self.length)
            return (
                projections
                + 2 * width * wide * num_queries
                + 2 * width * (num_queries * self.length)
            )

        layers = (self.config.num_layers - 1) * layer(self.length) + layer(masked + 1)
        return 6 * (layers + masked * (width**2 + width * VOCAB_SIZE))

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of weights and both moments."""
        return self.parameters * _SAVED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The seconds of one optimizer step on one rank, and its parts."""

    job: Job
    num_ranks: int
    computing: float
    exchange: float  # total, hidden or exposed
    exposed: float  # the part that the step waits for
    update: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.computing + self.exposed + self.update

    @property
    def sequences_per_second(self) -> float:
        """Sequences per second over all ranks."""
        return self.job.sequences_per_step / self.seconds

    @property
    def limit(self) -> str:
        """What to improve first: the largest part besides computing, if it exceeds 5%."""
        parts = {"exchange": self.exposed, "update": self.update}
        name = max(parts, key=lambda part: parts[part])
        return name if parts[name] > 0.05 * self.seconds else "computing"


def step_of(job: Job, card: Card, network: Network, num_ranks: int) -> Step:
    """One step of `job`, shared evenly by the ranks.

    Raises ValueError if a rank would have less than one sequence.
    """
    share = job.sequences_per_step / num_ranks
    if share < 1:
        raise ValueError(
            f"each rank must have a sequence, got {job.sequences_per_step} for {num_ranks} ranks"
        )
    computing = share * job.operations_per_sequence / card.sustained
    last = min(share, job.micro_batch) / share * computing  # of the last micro-batch
    sent = [
        (job.head_parameters + job.layer_parameters),
        *[job.layer_parameters] * (job.config.num_layers - 1),
        job.embedding_parameters,
    ]
    seconds = [network.all_reduce(n * job.gradient_bytes, num_ranks) for n in sent]
    return Step(
        job=job,
        num_ranks=num_ranks,
        computing=computing,
        exchange=sum(seconds),
        exposed=_exposed(seconds, _BACKWARD_SHARE * last) if network.hides else sum(seconds),
        update=job.parameters * _UPDATE_BYTES / card.memory,
    )


def _exposed(exchanges: list[float], backward: float) -> float:
    """The time of exchanges after the backward pass: one for each layer, then the embeddings'.

    They follow each other, and none starts before its layer's gradients are complete.
    """
    num_layers = len(exchanges) - 1
    free = 0.0
    for number, seconds in enumerate(exchanges, start=1):
        complete = backward * min(number, num_layers) / num_layers
        free = max(free, complete) + seconds
    return free - backward
