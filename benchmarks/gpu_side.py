"""One side of `benchmarks/gpu.py`: a process that takes pretraining steps on request.

Ours: `bert_core.training.loop.train`, with batches masked by a thread while the card computes. The
usual stack: `transformers` on padded batches, logits only at masked positions, whose number is
padded so that every shape is static, `scaled_dot_product_attention`, fused AdamW, bf16 autocast,
the whole forward pass through torch.compile; its batches are on the card from the start.
"""

import json
import queue
import statistics
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.alternating import serve
from benchmarks.pretraining_batches import NUM_BATCHES, VOCAB_SIZE, random_batches
from benchmarks.reference_batches import static_arguments
from benchmarks.usual_stack import Pretraining, Steps, their_config
from bert_core.batch import PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig, encoder_config
from bert_core.masking import MaskableVocabulary, MaskingConfig, mask_tokens
from bert_core.model.catalogue import PretrainingModel
from bert_core.randomness import random_bits
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.step_operations import batch_operations

STEPS_PER_TURN = 8  # in a row, with one synchronization at the end
WARMUPS = 2 * NUM_BATCHES
PROFILED_STEPS = 3


class Loader:
    """Masks batches on a thread, a few ahead; records how long each step waited for it."""

    def __init__(self, examples: list[PretrainingBatch]) -> None:
        self._examples = examples
        self._ready: queue.Queue[PretrainingBatch] = queue.Queue(maxsize=4)
        self.waits: list[float] = []
        threading.Thread(target=self._fill, daemon=True).start()

    def __call__(self, step: int) -> list[tuple[int, PretrainingBatch]]:
        start = time.perf_counter()
        batch = self._ready.get()
        self.waits.append(time.perf_counter() - start)
        return [(0, batch)]

    def _fill(self) -> None:
        vocabulary = MaskableVocabulary(
            is_maskable=np.arange(VOCAB_SIZE) >= 1000,
            continues_word=np.zeros(VOCAB_SIZE, dtype=bool),
            mask_id=103,
            replacement_ids=np.arange(1000, VOCAB_SIZE),
        )
        for step in count():
            example = self._examples[step % len(self._examples)]
            lengths = np.asarray(example.tokens.lengths)
            masked = mask_tokens(
                example.tokens.input_ids.numpy(),
                lengths,
                random_bits(0, "masking", step, np.arange(lengths.size)),
                config=MaskingConfig(),
                vocabulary=vocabulary,
            )
            self._ready.put(
                PretrainingBatch(
                    tokens=RaggedBatch.from_arrays(masked.input_ids, lengths // 2, lengths),
                    masked_positions=torch.from_numpy(masked.positions),
                    masked_labels=torch.from_numpy(masked.labels),
                    next_sentence_labels=example.next_sentence_labels,
                )
            )


def our_steps(
    config: EncoderConfig, batches: list[PretrainingBatch], device: str
) -> tuple[Callable[[], Any], Loader]:
    """A function that takes a step, and the loader that it reads from."""
    loader = Loader(batches)
    model = PretrainingModel(config).to(device)
    optimizer = AdamW(model, OptimizationConfig(num_steps=1_000_000, learning_rate=1e-4))
    steps = train(model, optimizer, loader, seed=0, precision="bf16")
    return lambda: next(steps), loader


def usual_steps(config: EncoderConfig, batches: list[PretrainingBatch], device: str) -> Steps:
    """The usual stack, compiled if there is a card."""
    model = Pretraining(their_config(config, attn_implementation="sdpa")).to(device).train()
    forward = torch.compile(model, dynamic=False) if device == "cuda" else model
    longest = max(batch.tokens.max_seqlen for batch in batches)
    most = max(batch.masked_positions.numel() for batch in batches)
    losses = [_loss_of(forward, static_arguments(batch, longest, most, device))
              for batch in batches]  # fmt: skip
    return Steps(model, losses, learning_rate=1e-4, bf16=True, tuned=True, device=device)


def _loss_of(forward: Callable[..., torch.Tensor], arguments: tuple) -> Callable[[], torch.Tensor]:
    return lambda: forward(*arguments)


def synchronize(device: str) -> None:
    """Wait for the card, if there is one."""
    if device == "cuda":
        torch.cuda.synchronize()


def run_side(
    side: str, size: str, length: int, dropout: float, num_tokens: int, notes: Path
) -> None:
    """Serve turns of `STEPS_PER_TURN` steps; afterwards write the profile to `notes`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(2 if device == "cuda" else torch.get_num_threads())
    rates = {"hidden_dropout": dropout, "attention_dropout": dropout}
    config = encoder_config(size, VOCAB_SIZE, **rates)
    batches = random_batches(num_tokens // length, length)
    loader = None
    if side == "ours":
        step, loader = our_steps(config, batches, device)
    else:
        step = usual_steps(config, batches, device)
    started = time.perf_counter()
    for _ in range(WARMUPS if device == "cuda" else 1):
        step()
    synchronize(device)
    warmup_seconds = time.perf_counter() - started
    if loader is not None:
        loader.waits.clear()

    def turn() -> None:
        for _ in range(STEPS_PER_TURN if device == "cuda" else 1):
            step()
        synchronize(device)

    facts = {
        "tokens": float(np.mean([batch.tokens.num_tokens for batch in batches])),
        "operations": float(np.mean([batch_operations(config, batch) for batch in batches])),
        "steps": STEPS_PER_TURN if device == "cuda" else 1,
        "warmup_seconds": warmup_seconds,
    }
    serve(turn, facts)
    found = {"wait": statistics.fmean(loader.waits) if loader and loader.waits else 0.0}
    found |= memory(device) | profile(step, device)
    notes.write_text(json.dumps(found), encoding="utf-8")


def memory(device: str) -> dict[str, float]:
    """Bytes on the card: the peak that tensors took, and the total."""
    if device != "cuda":
        return {}
    return {
        "peak": torch.cuda.max_memory_allocated(),
        "card": torch.cuda.get_device_properties(0).total_memory,
    }


def profile(step: Callable[[], Any], device: str) -> dict[str, Any]:
    """The slowest kernels of a step, and its number of launches (on a CPU: of operations)."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profiler(activities=[activity], acc_events=True) as seen:
        for _ in range(PROFILED_STEPS):
            step()
        synchronize(device)
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = [row for row in seen.key_averages() if getattr(row, key) > 0]
    rows.sort(key=lambda row: -getattr(row, key))
    total = sum(getattr(row, key) for row in rows)
    top = [[row.key[:90], row.count / PROFILED_STEPS, getattr(row, key) / total]
           for row in rows[:8]]  # fmt: skip
    return {"top": top, "launches": sum(row.count for row in rows) / PROFILED_STEPS}


def serve_products() -> None:
    """Serve turns of ten 8,192-wide bf16 matrix products, which measure the card's rate."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = 8192 if device == "cuda" else 512
    matrix = torch.randn(width, width, device=device, dtype=torch.bfloat16)

    def products() -> None:
        for _ in range(10):
            matrix @ matrix
        synchronize(device)

    products()
    serve(products, {"operations": 10 * 2 * width**3})
