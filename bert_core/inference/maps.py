"""What attends to what: the attention probabilities of every layer and head."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bert_core.backends.precision import Precision
from bert_core.inference.texts import Text, encode_texts
from bert_core.model.catalogue import Model
from bert_core.model.layers import attention_probabilities
from bert_core.ragged import RaggedBatch
from bert_core.vocabulary import WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMaps:
    """Row i of a map says how much token i reads of each token; it sums up to 1."""

    tokens: list[str]  # S tokens, special ones included
    probabilities: NDArray[np.float32]  # [L, H, S, S] of L layers
    is_truncated: bool


@torch.inference_mode()
def attention_maps(
    model: Model, tokenizer: WordPieceTokenizer, text: Text, precision: Precision = "float32"
) -> AttentionMaps:
    """The attention probabilities of all layers and heads for a text or a pair of texts.

    Raises ValueError for what is neither.
    """
    encoded = encode_texts(tokenizer, [text], model.config.max_position_embeddings)
    tokens = RaggedBatch.from_sequences(encoded.sequences, encoded.segment_b_start)
    with model.inference(precision):
        layers = [
            attention_probabilities(qkv.float(), causal=model.config.causal)
            for qkv in model.encoder.queries_keys_values(tokens.to(model.device))
        ]
    return AttentionMaps(
        tokens=[tokenizer.id_to_token(index) for index in encoded.sequences[0]],
        probabilities=torch.stack(layers).cpu().numpy(),
        is_truncated=encoded.num_truncated > 0,
    )
