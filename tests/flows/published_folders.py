"""A small model as others publish it."""

from pathlib import Path

import torch

from bert_core.config import EncoderConfig
from bert_core.hugging_face import export_model
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer

WORDS = ["a", "b", "c", "the", "text", "##s"]


def saved(folder: Path, head: str = "pretraining", **settings: object) -> Path:
    """A published folder with a small model."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=11, hidden_size=8, num_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    export_model(
        folder, build_model(head, config, **settings), WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS])
    )
    return folder
