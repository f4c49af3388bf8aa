"""Compute the tables of docs/scaling.md.

    python benchmarks/scaling_tables.py

The assumptions about cards and networks are here; docs/scaling.md says where they come from.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scaling_model import Card, Job, Network, step_of

A100_NETWORK = Network(name="DGX A100", cards_per_node=8, inside=230e9, between=8 * 22e9)
H200_NETWORK = Network(name="8 x 400 Gb/s", cards_per_node=8, inside=370e9, between=8 * 44e9)
ETHERNET = Network(name="100 Gb/s a node", cards_per_node=8, inside=370e9, between=11e9)

V100_NETWORK = Network(name="DGX-2H", cards_per_node=16, inside=120e9, between=8 * 11e9)

# BERT-large as NVIDIA trained it: 65,536 sequences per step, gradients in fp16, LAMB.
_LARGE = Job(size="large", sequences_per_step=65_536, micro_batch=64, gradient_bytes=2)
A100 = Card.measured("A100", _LARGE, 4_591 / 8, memory=1.5e12)
V100 = Card.measured("V100", _LARGE, 3_379.2 / 16, memory=0.8e12)
PUBLISHED = {
    "DGX A100": (A100, A100_NETWORK, {8: 4_591, 256: 138_294}),
    "DGX-2H, V100": (V100, V100_NETWORK, {16: 3_379.2, 256: 51_937.28, 1024: 188_088.32}),
}
H200 = Card(name="H200", sustained=0.5 * 790e12, memory=4.0e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Two ranks of one thread each on two cores: benchmarks/results/exchange_2026-11-21.md."""

    size: str
    sequences: int  # of each rank
    alone: float  # seconds of a step without any exchange, on both cores at once
    two_ranks: float  # seconds of a step with it

    @property
    def job(self) -> "Job":
        """The job of both ranks together."""
        return Job(
            size=self.size, sequences_per_step=2 * self.sequences, micro_batch=self.sequences
        )

    @property
    def card(self) -> Card:
        """One core; its update is part of the measured time."""
        return Card.measured("a core", self.job, self.sequences / self.alone, memory=math.inf)


MEASURED = (
    Measured(size="mini", sequences=16, alone=0.362, two_ranks=0.388),
    Measured(size="base", sequences=8, alone=2.453, two_ranks=2.789),
)
# 440 MB of gradients took 321 ms over the loopback when nothing else ran: the same page.
GLOO = Network(
    name="gloo", cards_per_node=2, inside=440e6 / 0.321, between=1.0, latency=0.0, hides=False
)

RANKS = (8, 64, 512)
JOBS = {
    "base, 4,096 a step": Job(size="base", sequences_per_step=4_096, micro_batch=256),
    "base, 65,536 a step": Job(size="base", sequences_per_step=65_536, micro_batch=256),
    "large, 4,096 a step": Job(size="large", sequences_per_step=4_096, micro_batch=128),
    "large, 65,536 a step": Job(size="large", sequences_per_step=65_536, micro_batch=128),
}
BYTES_PER_TOKEN = 2.05  # of a shard without masks: benchmarks/results/data_2026-11-21.md
READ_PER_CORE = 9.41e6  # tokens per second: the same page


def published_table() -> list[str]:
    """NVIDIA's published rates and the model's."""
    lines = [
        "| | GPUs | published | model | of linear: published | model |",
        "|---|---|---|---|---|---|",
    ]
    for name, (card, network, points) in PUBLISHED.items():
        first = min(points)
        start = step_of(_LARGE, card, network, first).sequences_per_second
        for count, rate in points.items():
            found = step_of(_LARGE, card, network, count).sequences_per_second
            lines.append(
                f"| {name} | {count} | {rate:,.0f} | {found:,.0f} "
                f"| {rate / points[first] / (count / first):.0%} "
                f"| {found / start / (count / first):.0%} |"
            )
    return lines


def measured_table() -> list[str]:
    """Two ranks on this kind of machine, measured and computed."""
    lines = [
        "| a rank's batch | without exchange | two ranks, measured | model | off by |",
        "|---|---|---|---|---|",
    ]
    for point in MEASURED:
        found = step_of(point.job, point.card, GLOO, 2).seconds
        lines.append(
            f"| {point.size}, {point.sequences} x {point.job.length} | {_ms(point.alone)} "
            f"| {_ms(point.two_ranks)} | {_ms(found)} | {found / point.two_ranks - 1:+.1%} |"
        )
    return lines


def scaling_table(network: Network) -> list[str]:
    """Base and large on 8, 64 and 512 cards."""
    lines = [
        "| job | GPUs | step | computing | exchange, all / exposed | update | sequences/s "
        "| of linear | limited by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, job in JOBS.items():
        alone = step_of(job, H200, network, 1).sequences_per_second
        for count in RANKS:
            step = step_of(job, H200, network, count)
            lines.append(
                f"| {name} | {count} | {_ms(step.seconds)} | {_ms(step.computing)} "
                f"| {_ms(step.exchange)} / {_ms(step.exposed)} | {_ms(step.update)} "
                f"| {step.sequences_per_second:,.0f} "
                f"| {step.sequences_per_second / alone / count:.0%} | {step.limit} |"
            )
    return lines


def loading_table(network: Network) -> list[str]:
    """What a rank reads, and the share of a core that this needs."""
    lines = [
        "| job | GPUs | tokens/s a rank | bytes/s a rank | of a core | bytes/s of all |",
        "|---|---|---|---|---|---|",
    ]
    for name, job in JOBS.items():
        for count in (RANKS[0], RANKS[-1]):
            rate = step_of(job, H200, network, count).sequences_per_second * job.length
            lines.append(
                f"| {name} | {count} | {rate / count:,.0f} "
                f"| {rate / count * BYTES_PER_TOKEN / 1e6:.1f} MB "
                f"| {rate / count / READ_PER_CORE:.0%} | {rate * BYTES_PER_TOKEN / 1e6:,.0f} MB |"
            )
    return lines


def checkpoint_table() -> list[str]:
    """Bytes of a checkpoint, and the time to write them to a store."""
    rates = {"100 MB/s": 100e6, "1 GB/s": 1e9, "10 GB/s": 10e9}
    lines = [f"| size | bytes | {' | '.join(rates)} |", "|---|---|" + "---|" * len(rates)]
    for size in ("base", "large"):
        job = Job(size=size, sequences_per_step=1, micro_batch=1)
        seconds = " | ".join(f"{job.checkpoint_bytes / rate:.1f} s" for rate in rates.values())
        lines.append(f"| {size} | {job.checkpoint_bytes / 1e9:.1f} GB | {seconds} |")
    return lines


def tables() -> dict[str, list[str]]:
    """All tables of docs/scaling.md, by content."""
    return {
        "two cores": measured_table(),
        "NVIDIA's points": published_table(),
        "400 Gb/s a card": scaling_table(H200_NETWORK),
        "100 Gb/s a node": scaling_table(ETHERNET),
        "loading": loading_table(H200_NETWORK),
        "checkpoints": checkpoint_table(),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for name, lines in tables().items():
        sys.stdout.write("\n".join([f"## {name}", "", *lines, "", ""]))


if __name__ == "__main__":
    main()
