"""What a classifier answers, the texts divided among the ranks of its training."""

from collections.abc import Sequence

import numpy as np
import torch

from bert_core.inference.texts import BATCH_TOKENS, encode_texts
from bert_core.model.catalogue import TrainableModel
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.training.reduction import sum_over_ranks


@torch.inference_mode()
def answers_over_ranks(
    model: TrainableModel,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[str],
    rank: int,
    world_size: int,
) -> list[int]:
    """The index of each text's label, as `bert_core.inference.classify` answers.

    The batches are those of `classify`, whatever the number of ranks; all ranks get all answers.
    """
    answers = np.zeros(len(texts), np.int64)
    encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
    for number, (members, tokens) in enumerate(encoded.batches(BATCH_TOKENS)):
        if number % world_size == rank:
            probabilities = model(tokens).float().softmax(dim=-1)
            answers[members] = probabilities.argmax(dim=-1).numpy()
    return list(map(int, sum_over_ranks(answers)))
