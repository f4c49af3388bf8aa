"""Checkpoints travel to the Hugging Face layout and back without losing a bit."""

import os
import re
import stat

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_core.hugging_face import export_model, import_model
from bert_core.inference.answers import rate
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from tests.bert_core.batches import ragged_batch, small_config

HEADS = {
    "encoder": {},
    "pretraining": {},
    "language_model": {},
    "next_sentence": {},
    "sequence_classification": {"num_labels": 3, "labels": ["x", "y", "z"]},
    "multi_label_classification": {"num_labels": 3, "labels": ["x", "y", "z"]},
    "regression": {},
    "multiple_choice": {},
    "token_classification": {"num_labels": 5},
    "span_prediction": {},
}


def new_model(head="pretraining", **overrides):
    torch.manual_seed(0)
    config = small_config(causal=head == "language_model", **overrides)
    return build_model(head, config, **HEADS[head])


def tokenizer():
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    return WordPieceTokenizer([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)])


def assert_same_model(left, right):
    assert left.head_name == right.head_name
    assert left.config == right.config
    ours, theirs = left.state_dict(), right.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t.clone() for n, t in change(tensors).items()}, folder / "model.safetensors")


@pytest.mark.parametrize("head", HEADS)
def test_a_round_trip_is_exact_for_every_head(tmp_path, head):
    model = new_model(head)
    export_model(tmp_path / "there", model)
    back = import_model(tmp_path / "there")
    assert_same_model(model, back)
    expected = None if "labels" not in HEADS[head] else ("x", "y", "z")
    if head == "token_classification":
        expected = tuple(f"LABEL_{index}" for index in range(5))
    assert getattr(back, "labels", None) == expected


@pytest.mark.parametrize("pooling", ["pooler", "mean"])
def test_the_scale_of_a_regression_is_part_of_the_exported_head(tmp_path, pooling):
    torch.manual_seed(0)
    model = build_model("regression", small_config(), mean=1990.0, deviation=20.0, pooling=pooling)
    export_model(tmp_path / "model", model, tokenizer())
    text = "a b c"
    if pooling == "pooler":
        found = rate(import_model(tmp_path / "model"), tokenizer(), [text]).values[0]
    else:
        sentence_transformers = pytest.importorskip("sentence_transformers")
        theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
        found = theirs.encode([text], show_progress_bar=False)[0, 0]
    assert found == pytest.approx(rate(model, tokenizer(), [text]).values[0], abs=1e-3)
    assert found != pytest.approx(1990.0, abs=1e-3)


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_whom_the_umask_lets_read_may_read_every_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        export_model(tmp_path / "model", new_model("encoder"), tokenizer(), pooling="mean")
    finally:
        os.umask(before)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "model").rglob("*")
        if path.is_file()
    }
    assert {"model.safetensors", "config.json", "vocab.txt"} <= set(modes)
    assert set(modes.values()) == {0o666 & ~umask}
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o777 & ~umask


def test_models_without_pooler_or_pairs_round_trip_too(tmp_path):
    for name, head, settings in (
        ("a", "encoder", {"pooler": False}),
        ("b", "pretraining", {"next_sentence": False}),
    ):
        model = build_model(head, small_config(), **settings)
        export_model(tmp_path / name, model)
        assert_same_model(model, import_model(tmp_path / name))


def test_what_the_reference_wrote_is_read_exactly(tmp_path):
    settings = {
        "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    reference = transformers.BertForPreTraining(transformers.BertConfig(**settings)).eval()
    reference.save_pretrained(tmp_path / "theirs")
    model = import_model(tmp_path / "theirs")
    tokens = ragged_batch((9,))
    expected = reference(
        input_ids=tokens.input_ids[None], token_type_ids=tokens.token_type_ids[None]
    )
    mlm, nsp = model(tokens, torch.arange(9))
    torch.testing.assert_close(mlm, expected.prediction_logits[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(nsp, expected.seq_relationship_logits, atol=1e-5, rtol=0)


def test_old_names_are_read(tmp_path):
    model = new_model()
    export_model(tmp_path / "old", model)
    tensors = load_file(tmp_path / "old" / "model.safetensors")
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["bert.embeddings.position_ids"] = torch.arange(64)[None]
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # none may share memory
    save_file(tensors, tmp_path / "old" / "model.safetensors")
    assert_same_model(model, import_model(tmp_path / "old"))


def test_a_checkpoint_without_the_prefix_is_read(tmp_path):
    model = new_model("encoder")
    export_model(tmp_path / "bare", model)
    assert "embeddings.word_embeddings.weight" in load_file(tmp_path / "bare" / "model.safetensors")
    assert_same_model(model, import_model(tmp_path / "bare"))


GONE, BIAS = "bert.encoder.layer.1.output.dense.weight", "cls.predictions.bias"
OTHER_TENSORS = {
    rf"missing: {re.escape(GONE)}$": lambda tensors: {
        n: t for n, t in tensors.items() if n != GONE
    },
    r"unexpected: adapter\.weight": lambda tensors: {**tensors, "adapter.weight": torch.zeros(2)},
    r"bias \[7\] instead of \[120\]": lambda tensors: {**tensors, BIAS: torch.zeros(7)},
}


@pytest.mark.parametrize("message", OTHER_TENSORS)
def test_every_tensor_that_differs_is_listed_and_none_replaced_by_random_numbers(tmp_path, message):
    export_model(tmp_path / "other", new_model())
    rewrite(tmp_path / "other", OTHER_TENSORS[message])
    with pytest.raises(ValueError, match=message):
        import_model(tmp_path / "other")


def test_a_head_the_checkpoint_lacks_is_an_error(tmp_path):
    export_model(tmp_path / "encoder", new_model("encoder"))
    with pytest.raises(ValueError, match=r"missing: cls\.predictions"):
        import_model(tmp_path / "encoder", head="pretraining")
    with pytest.raises(ValueError, match="have no head for sequence_classification"):
        import_model(tmp_path / "encoder", head="sequence_classification")


def test_a_decoder_that_is_not_tied_is_refused(tmp_path):
    export_model(tmp_path / "free", new_model())
    decoder = {"cls.predictions.decoder.weight": torch.zeros(120, 32)}
    rewrite(tmp_path / "free", lambda tensors: {**tensors, **decoder})
    with pytest.raises(ValueError, match="tied decoder"):
        import_model(tmp_path / "free")


@pytest.mark.parametrize("head", ["encoder", "next_sentence"])
def test_heads_without_tokens_are_read_although_the_decoder_is_untied(tmp_path, head):
    model = new_model()
    export_model(tmp_path / "free", model)
    decoder = {"cls.predictions.decoder.weight": torch.zeros(120, 32)}
    rewrite(tmp_path / "free", lambda tensors: {**tensors, **decoder})
    found = import_model(tmp_path / "free", head=head)
    assert found.head_name == head
    theirs = model.state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in found.state_dict().items())


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_the_reference_cuts_a_long_text_at_the_model_s_own_positions(tmp_path, pooling):
    ours = tokenizer()
    model = new_model("encoder", vocab_size=ours.vocab_size)
    export_model(tmp_path / "short", model, ours, pooling=pooling)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "short")
    assert theirs.model_max_length == model.config.max_position_embeddings == 64
    encoded = theirs("a " * 200, truncation=True, return_tensors="pt")
    assert encoded["input_ids"].shape == (1, 64)
    reference = transformers.AutoModel.from_pretrained(tmp_path / "short")
    assert reference(**encoded).last_hidden_state.shape == (1, 64, 32)
