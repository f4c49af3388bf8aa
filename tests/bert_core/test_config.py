"""Named sizes have the published numbers of parameters; impossible sizes are refused."""

import pytest
import torch

from bert_core.config import SIZES, EncoderConfig, encoder_config
from bert_core.model.catalogue import EncoderModel, count_parameters
from tests.bert_core.batches import small_config

# With pooler, over the uncased vocabulary (Devlin et al., 2019; Turc et al., 2019).
PUBLISHED = {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}


@pytest.mark.parametrize("size", SIZES)
def test_named_sizes_have_the_published_numbers_of_parameters(size):
    with torch.device("meta"):
        model = EncoderModel(encoder_config(size, 30_522))
    assert count_parameters(model) == PUBLISHED[size]


def test_a_config_survives_its_dictionary():
    config = small_config(causal=True)
    assert EncoderConfig.from_dict(config.to_dict()) == config


def test_unknown_entries_are_refused():
    with pytest.raises(ValueError, match="unexpected keyword argument 'hidden_sizes'"):
        EncoderConfig.from_dict({"vocab_size": 10, "hidden_sizes": 3})
    with pytest.raises(ValueError, match="missing 1 required keyword-only argument: 'vocab_size'"):
        EncoderConfig.from_dict({"hidden_size": 64})
    with pytest.raises(ValueError, match="size must be one of tiny, mini"):
        encoder_config("huge", 1000)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"num_attention_heads": 5}, "multiple of num_attention_heads, got 32 and 5"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"hidden_dropout": 1.0}, r"hidden_dropout must lie in \[0, 1\), got 1.0"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps must be positive"),
    ],
)
def test_impossible_settings_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        small_config(**entry)


def test_weights_start_as_published():
    torch.manual_seed(0)
    model = EncoderModel(small_config(vocab_size=5000))
    token = model.encoder.embeddings.token.detach()
    assert token.abs().max() <= 0.04
    assert token.std() == pytest.approx(0.02 * 0.88, rel=0.02)  # of a normal cut at 2 deviations
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        elif "norm" in name:
            assert (parameter == 1).all()
