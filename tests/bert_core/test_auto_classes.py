"""The heads of all seven families open in `transformers`' Auto classes, and answer the same."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from bert_core.batch import RaggedBatch
from bert_core.hugging_face import export_model, import_model
from bert_core.inference.answers import rate
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from tests.bert_core.batches import small_config

transformers = pytest.importorskip("transformers")

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TEXTS = ["a short one", "b", "one of a rather greater length", "of the others"]
NAMED = {"num_labels": 3, "labels": ("x", "y", "z")}
HEADS = {  # of each family: the head, its settings, and the Auto class
    "classification": ("sequence_classification", NAMED, "SequenceClassification"),
    "multi-label": ("multi_label_classification", NAMED, "SequenceClassification"),
    "regression": ("regression", {"mean": 3.0, "deviation": 2.0}, "SequenceClassification"),
    "multiple-choice": ("multiple_choice", {}, "MultipleChoice"),
    "tagging": ("token_classification", NAMED, "TokenClassification"),
    "question-answering": ("span_prediction", {}, "QuestionAnswering"),
    "sentence-embedding": ("sentence_embedding", {}, ""),
}
OVER_MEAN = ("classification", "multi-label", "regression", "multiple-choice")
CASES = [(name, "pooler") for name in HEADS] + [(name, "mean") for name in OVER_MEAN]


def small_model(family, pooling):
    head, settings, _ = HEADS[family]
    torch.manual_seed(0)
    config = small_config(vocab_size=len(TOKENS), initializer_range=0.2)
    over_mean = {"pooling": "mean"} if pooling == "mean" else {}
    return build_model(head, config, **settings, **over_mean).eval()


@pytest.mark.parametrize(("family", "reads_masks"), [("regression", False), ("", True)])
def test_special_tokens_in_a_text_are_characters_unless_masks_are_filled(
    tmp_path, family, reads_masks
):
    head = small_model(family, "pooler") if family else build_model(
        "pretraining", small_config(vocab_size=len(TOKENS))
    )  # fmt: skip
    tokenizer = WordPieceTokenizer([*TOKENS, "[", "]"])
    text = "a [SEP] b [MASK]"
    ours = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    export_model(tmp_path / "exported", head, WordPieceTokenizer(TOKENS))
    tokenizer.save(tmp_path / "tokenizer", fills_masks=reads_masks)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")(text)["input_ids"]
    assert (theirs == ours) is not reads_masks
    assert (theirs.count(tokenizer.mask_id) == 1) is reads_masks
    settings = json.loads((tmp_path / "exported/tokenizer_config.json").read_text())
    assert settings.get("split_special_tokens", False) is not reads_masks
    WordPieceTokenizer.from_directory(tmp_path / "exported")


@pytest.mark.parametrize("pooling", ["pooler", "mean"])
def test_a_cross_encoder_gives_the_numbers_of_a_regression(tmp_path, pooling):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model, tokenizer = small_model("regression", pooling), WordPieceTokenizer(TOKENS)
    export_model(tmp_path / "exported", model, tokenizer)
    theirs = sentence_transformers.CrossEncoder(
        str(tmp_path / "exported"), trust_remote_code=True, device="cpu"
    )
    pairs = [("a short one", "b"), ("one of the others", "a")]
    expected = torch.from_numpy(rate(model, tokenizer, pairs).values)
    torch.testing.assert_close(torch.from_numpy(theirs.predict(pairs)), expected)


@pytest.mark.parametrize(("family", "pooling"), CASES)
def test_logits_are_those_of_the_auto_class(tmp_path, family, pooling):
    model = small_model(family, pooling)
    export_model(tmp_path / "exported", model, WordPieceTokenizer(TOKENS))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    automatic = f"AutoModelFor{HEADS[family][2]}" if HEADS[family][2] else "AutoModel"
    theirs = getattr(transformers, automatic).from_pretrained(
        tmp_path / "exported", trust_remote_code=pooling == "mean"
    )
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    tokens = RaggedBatch.from_sequences(
        [ids[mask.bool()].tolist() for ids, mask in
         zip(encoded["input_ids"], encoded["attention_mask"], strict=True)]
    )  # fmt: skip
    if family == "multiple-choice":
        encoded = {name: values.view(2, 2, -1) for name, values in encoded.items()}
    with torch.inference_mode():
        answers = theirs.eval()(**encoded)
        ours = model(tokens)
    is_token = encoded["attention_mask"].bool()
    if family == "question-answering":
        logits = torch.stack([answers.start_logits, answers.end_logits], dim=-1)[is_token]
    elif family == "tagging":
        logits = answers.logits[is_token]
    elif family == "sentence-embedding":
        states = answers.last_hidden_state * is_token[..., None]
        mean = states.sum(dim=1) / is_token.sum(dim=1, keepdim=True)
        logits = torch.nn.functional.normalize(mean, dim=-1)
    else:
        logits = answers.logits
    assert (logits.reshape(ours.shape) - ours).abs().max() < 1e-4


@pytest.mark.parametrize("family", OVER_MEAN)
def test_a_head_over_the_mean_comes_back_whole(tmp_path, family):
    model = small_model(family, "mean")
    export_model(tmp_path / "exported", model, WordPieceTokenizer(TOKENS))
    back = import_model(tmp_path / "exported")
    scale = {"mean", "deviation"}  # part of the exported layer
    expected, settings = model.head_settings(), back.head_settings()
    assert {k: v for k, v in settings.items() if k not in scale} == {
        k: list(v) if isinstance(v, tuple) else v for k, v in expected.items() if k not in scale
    }
    tokens = RaggedBatch.from_sequences([[2, 7, 9, 3], [2, 8, 3]])
    torch.testing.assert_close(back(tokens), model(tokens))


@pytest.mark.parametrize("shape", [(), (3, 32), (2, 3, 32)])
def test_a_weight_of_another_shape_is_refused(tmp_path, shape):
    export_model(tmp_path / "exported", small_model("classification", "mean"))
    path = tmp_path / "exported/model.safetensors"
    save_file({**load_file(path), "classifier.weight": torch.zeros(shape)}, path)
    with pytest.raises(ValueError, match=r"must have classifier.weight of \[1, classes, size\]"):
        import_model(tmp_path / "exported")


def test_without_its_code_a_published_class_refuses_it(tmp_path, caplog):
    """Instead of answers by a pooler of random weights."""
    export_model(tmp_path / "exported", small_model("classification", "mean"))
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match="mismatched_sizes"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / "exported")


def test_the_fields_that_text_embeddings_inference_reads_are_there(tmp_path):
    """Those of its `ModelConfig`, `PoolConfig` and `STConfig` (router/src/lib.rs)."""
    for family, pooling in (("classification", "pooler"), ("sentence-embedding", "pooler")):
        folder = tmp_path / family
        export_model(folder, small_model(family, pooling), WordPieceTokenizer(TOKENS))
        config = json.loads((folder / "config.json").read_text())
        assert isinstance(config["architectures"], list) and config["model_type"] == "bert"
        assert isinstance(config["max_position_embeddings"], int) and "pad_token_id" in config
        assert (folder / "tokenizer.json").is_file()
        if family == "classification":
            assert config["architectures"][0].endswith("Classification")
            assert config["id2label"] == {"0": "x", "1": "y", "2": "z"}
            assert config["label2id"] == {"x": 0, "y": 1, "z": 2}
            names = load_file(folder / "model.safetensors")
            assert names["classifier.weight"].shape == (3, config["hidden_size"])
            assert "bert.pooler.dense.weight" in names
        else:
            flags = json.loads((folder / "1_Pooling/config.json").read_text())
            assert [name for name, value in flags.items() if value is True] == [
                "pooling_mode_mean_tokens"
            ]
            assert {"pooling_mode_cls_token", "pooling_mode_max_tokens",
                    "pooling_mode_mean_sqrt_len_tokens"} <= flags.keys()  # fmt: skip
            settings = json.loads((folder / "sentence_bert_config.json").read_text())
            assert isinstance(settings["max_seq_length"], int)


def test_it_can_be_trained_on_there(tmp_path):
    for family, labels in (
        ("classification", torch.tensor([0, 2])), ("multi-label", torch.ones(2, 3)),
        ("regression", torch.tensor([1.5, 2.0])), ("multiple-choice", torch.tensor([1])),
    ):  # fmt: skip
        export_model(tmp_path / family, small_model(family, "mean"))
        automatic = getattr(transformers, f"AutoModelFor{HEADS[family][2]}")
        model = automatic.from_pretrained(tmp_path / family, trust_remote_code=True)
        ids = torch.tensor([[2, 7, 9, 3], [2, 8, 9, 3]])
        loss = model(ids[None] if family == "multiple-choice" else ids, labels=labels).loss
        loss.backward()
        assert torch.isfinite(loss) and model.classifier.weight.grad.abs().sum() > 0
