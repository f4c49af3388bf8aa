"""The textbook example: a causal model learns Li Bai's four lines and completes them."""

import numpy as np
import pytest
import torch

from bert_core.batch import LabelledBatch, RaggedBatch, next_token_labels
from bert_core.config import EncoderConfig
from bert_core.inference.pretrained import complete
from bert_core.model.catalogue import LanguageModel
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig

CHINESE = " ".join("床前明月光疑是地上霜举头望明月低头思故乡")
ENGLISH = (
    "before my bed the moonlight lies so bright / i take it for a frost upon the floor / "
    "i lift my head and watch the moon tonight / i bow my head and long for home once more"
)


@pytest.mark.parametrize("words", [CHINESE, ENGLISH], ids=["chinese", "english"])
def test_the_poem_is_completed_from_its_first_two_words(words):
    words = words.split()
    vocabulary = ["[SOS]", "[EOS]", *dict.fromkeys(words)]
    ids = [vocabulary.index(word) for word in ("[SOS]", *words, "[EOS]")]
    torch.manual_seed(0)
    model = LanguageModel(
        EncoderConfig(
            vocab_size=len(vocabulary), hidden_size=64, num_layers=2, num_attention_heads=4,
            intermediate_size=256, max_position_embeddings=64, causal=True,
        )
    )  # fmt: skip
    tokens = RaggedBatch.from_sequences([ids])
    batch = LabelledBatch.from_arrays(tokens, next_token_labels(tokens))
    config = OptimizationConfig(num_steps=120, learning_rate=3e-3, warmup_steps=10)
    optimizer = AdamW(model, config)
    for _ in train(model, optimizer, lambda step: [(0, batch)], seed=0, precision="float32"):
        pass
    assert complete(model, ids[:3], end_id=1) == ids
    drawn = complete(model, ids[:3], end_id=1, temperature=0.3, seed=1)
    assert np.mean(np.array(drawn[: len(ids)]) == np.array(ids[: len(drawn)])) > 0.9
