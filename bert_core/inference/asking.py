"""Asking a model: the head a question needs, and batches of as many tokens as fit its device."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from bert_core.backends.precision import Precision, compute_dtype
from bert_core.batch import RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts
from bert_core.model.catalogue import Model
from bert_core.model.forward_memory import Backend, forward_memory

M = TypeVar("M", bound=Model)
Progress = Callable[[int, int], None]  # called with texts done, texts in all

# A GPU is busy with fewer, and powers of two keep the batches, and with them the bits, the same
# where a little more or less of its memory is free.
_MOST_TOKENS = 1 << 16
_SHARE_OF_FREE = 0.8


class Output(NamedTuple):
    """What a model gave for one batch, on the CPU in float32."""

    members: Tensor  # [B] which texts they are
    lengths: tuple[int, ...]  # B numbers of tokens
    values: Tensor


def with_head(model: Model, wanted: type[M]) -> M:
    """The model as what it is; raises ValueError for one with another head."""
    if not isinstance(model, wanted):
        raise ValueError(
            f"this needs a model with the head {wanted.head_name}, got {model.head_name}"
        )
    return model


@torch.inference_mode()
def run_batches(
    model: Model,
    encoded: EncodedTexts,
    compute: Callable[[RaggedBatch], Tensor],
    *,
    batch_tokens: int | None,
    precision: Precision,
    progress: Progress | None = None,
) -> list[Output]:
    """What `compute` gives for batches on the model's device that together hold all texts.

    A batch holds at most `batch_tokens` tokens, those counted that the plain backend fills up; None
    takes what suits the device. Where one turns out not to fit the device's memory, it and those
    after it are computed in halves.

    Raises ValueError for less than one token or another precision, and torch.OutOfMemoryError
    where not even a single text fits.
    """
    device, num_texts = model.device, len(encoded.sequences)
    outputs: list[Output] = []
    num_done = 0
    with model.precision(precision):
        backend = _backend(device, compute_dtype(precision, device))
        is_padded = backend == "plain"
        if batch_tokens is None:
            batch_tokens = _fitting_tokens(model, encoded, backend)
        while num_done < num_texts:
            for members, tokens in encoded.batches(
                batch_tokens, first=num_done, is_padded=is_padded
            ):
                values = _computed(compute, tokens, device)
                if values is None:
                    batch_tokens = max(1, tokens.num_tokens // 2)
                    if device.type == "cuda":
                        torch.cuda.empty_cache()
                    break
                outputs.append(Output(torch.from_numpy(members), tokens.lengths, values))
                num_done += len(members)
                if progress is not None:
                    progress(num_done, num_texts)
    return outputs


def _computed(
    compute: Callable[[RaggedBatch], Tensor], tokens: RaggedBatch, device: torch.device
) -> Tensor | None:
    """The result, or None where several texts did not fit together.

    It returns, and does not go on here: the error holds on to what filled the memory.
    """
    try:
        return compute(tokens.to(device)).float().cpu()
    except torch.OutOfMemoryError:
        if tokens.num_sequences == 1:
            raise
        return None


def _backend(device: torch.device, dtype: torch.dtype) -> Backend:
    if device.type != "cuda":
        return "cpu"
    return "flash" if dtype == torch.bfloat16 else "plain"


def _fitting_tokens(model: Model, encoded: EncodedTexts, backend: Backend) -> int:
    device = model.device
    if backend == "cpu":
        return BATCH_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    longest = max(len(sequence) for sequence in encoded.sequences)
    dtype = torch.bfloat16 if backend == "flash" else torch.float32
    return most_tokens(model.config, longest, free, dtype=dtype, backend=backend)


def most_tokens(
    config: EncoderConfig, longest: int, free_bytes: int, *, dtype: torch.dtype, backend: Backend
) -> int:
    """The greatest power of two up to 65,536 whose tokens fit well into `free_bytes`.

    At least `longest`, the tokens of the longest text.
    """
    count = _MOST_TOKENS
    while count > longest:
        needed = forward_memory(
            config, num_tokens=count, longest=longest, dtype=dtype, backend=backend
        )
        if needed <= _SHARE_OF_FREE * free_bytes:
            return count
        count //= 2
    return longest
