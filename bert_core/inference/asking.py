"""Asking a model: the head a question needs, and batches of as many tokens as fit its device."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from bert_core.backends.precision import Precision, compute_dtype
from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts
from bert_core.model.catalogue import Model
from bert_core.ragged import RaggedBatch

M = TypeVar("M", bound=Model)
Progress = Callable[[int, int], None]  # called with texts done, texts in all

_GPU_TOKENS = 1 << 16  # more than enough to keep a GPU busy


class Output(NamedTuple):
    """The result for one batch, on the CPU in float32."""

    members: Tensor  # [B] which texts they are
    lengths: tuple[int, ...]  # B numbers of tokens
    values: Tensor


def with_head(model: Model, wanted: type[M]) -> M:
    """The model, as one with the wanted head; raises ValueError for another one."""
    if not isinstance(model, wanted):
        raise ValueError(
            f"a model with the head {wanted.head_name} is needed, got {model.head_name}"
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
    """The results of `compute` for batches on the model's device that together hold all texts.

    A batch holds at most `batch_tokens` tokens, padding included; None takes what suits the device.
    A batch that does not fit the device's memory, and those after it, are halved.

    Raises ValueError for less than one token or another precision, and torch.OutOfMemoryError if
    not even a single text fits.
    """
    device, num_texts = model.device, len(encoded.sequences)
    outputs: list[Output] = []
    num_done = 0
    with model.inference(precision, sum(map(len, encoded.sequences))):
        is_gpu = device.type == "cuda"
        # On a GPU only its kernel for bfloat16 takes sequences of any lengths.
        is_padded = is_gpu and compute_dtype(precision, device) != torch.bfloat16
        if batch_tokens is None:
            batch_tokens = _GPU_TOKENS if is_gpu else BATCH_TOKENS
        while num_done < num_texts:
            for members, tokens in encoded.batches(
                batch_tokens, first=num_done, is_padded=is_padded
            ):
                values = _computed(compute, tokens, device)
                if values is None:
                    batch_tokens = max(1, tokens.num_tokens // 2)
                    if is_gpu:
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
    """The result, or None if several texts did not fit into memory together.

    It returns before anything is retried: the error keeps alive what filled the memory.
    """
    try:
        return compute(tokens.to(device)).float().cpu()
    except torch.OutOfMemoryError:
        if tokens.num_sequences == 1:
            raise
        return None
