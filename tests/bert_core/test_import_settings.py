"""What `config.json` says of a checkpoint is read for what it says, or refused."""

import json

import pytest
import torch
import transformers

from bert_core.hugging_face import export_model, import_model
from bert_core.model.catalogue import build_model
from bert_core.model.encoder import TaskHead
from bert_core.training.state import load_model, save_model
from tests.bert_core.batches import ragged_batch, small_config
from tests.bert_core.test_hugging_face import HEADS, assert_same_model, new_model


def reconfigure(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "relu"),
        ("model_type", "roberta"),
        ("position_embedding_type", "relative"),
        ("add_cross_attention", True),
    ],
)
def test_another_architecture_is_refused(tmp_path, key, value):
    export_model(tmp_path / "other", new_model())
    reconfigure(tmp_path / "other", **{key: value})
    with pytest.raises(ValueError, match=f"{key}.*{value}|type bert, found.*{value}"):
        import_model(tmp_path / "other")


@pytest.mark.parametrize("head", ["encoder", "pretraining", "token_classification"])
def test_a_causal_encoder_stays_causal_under_any_head(tmp_path, head):
    torch.manual_seed(0)
    model = build_model(head, small_config(causal=True), **HEADS[head])
    export_model(tmp_path / "there", model)
    assert_same_model(model, import_model(tmp_path / "there"))
    if head == "encoder":
        reference = transformers.AutoModel.from_pretrained(tmp_path / "there").eval()
        tokens = ragged_batch((9,))
        theirs = reference(
            input_ids=tokens.input_ids[None], token_type_ids=tokens.token_type_ids[None]
        ).last_hidden_state[0]
        torch.testing.assert_close(model(tokens), theirs, atol=1e-5, rtol=0)


def test_a_language_model_that_is_no_decoder_reads_both_sides_as_in_the_reference(tmp_path):
    export_model(tmp_path / "lm", new_model("language_model"))
    reconfigure(tmp_path / "lm", is_decoder=False)
    model = import_model(tmp_path / "lm")
    assert (model.head_name, model.config.causal) == ("pretraining", False)
    reference = transformers.BertLMHeadModel.from_pretrained(tmp_path / "lm").eval()
    tokens = ragged_batch((9,))
    theirs = reference(
        input_ids=tokens.input_ids[None], token_type_ids=tokens.token_type_ids[None]
    ).logits[0]
    ours, _ = model(tokens, torch.arange(9))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert import_model(tmp_path / "lm", head="language_model").config.causal
    assert not import_model(tmp_path / "lm", head="pretraining").config.causal


@pytest.mark.parametrize("num_labels", [1, 3])
def test_several_labels_a_text_are_read_as_such(tmp_path, num_labels):
    model = build_model("sequence_classification", small_config(), num_labels=num_labels)
    export_model(tmp_path / "several", model)
    reconfigure(tmp_path / "several", problem_type="multi_label_classification")
    assert import_model(tmp_path / "several").head_name == "multi_label_classification"
    with pytest.raises(
        ValueError, match="for the head sequence_classification, found 'multi_label"
    ):
        import_model(tmp_path / "several", head="sequence_classification")


@pytest.mark.parametrize(
    ("head", "problem", "message"),
    [
        ("sequence_classification", "regression", "instead of .1, 32."),
        ("sequence_classification", "ranking", "found 'ranking'"),
        ("multi_label_classification", "ranking", "found 'ranking'"),
    ],
)
def test_a_problem_that_is_not_one_of_the_published_three_is_refused(
    tmp_path, head, problem, message
):
    export_model(tmp_path / "other", new_model(head))
    reconfigure(tmp_path / "other", problem_type=problem)
    with pytest.raises(ValueError, match=message):
        import_model(tmp_path / "other")
    with pytest.raises(ValueError, match=f"found '{problem}'"):
        import_model(tmp_path / "other", head="sequence_classification")
    assert import_model(tmp_path / "other", head="encoder").head_name == "encoder"


def test_a_classifier_of_one_class_is_no_regression(tmp_path):
    model = build_model("sequence_classification", small_config(), num_labels=1, labels=["x"])
    export_model(tmp_path / "one", model)
    assert_same_model(model, import_model(tmp_path / "one"))
    reconfigure(tmp_path / "one", problem_type=None)  # as the reference reads it then
    assert import_model(tmp_path / "one").head_name == "regression"


CLASSIFIERS = {
    "sequence_classification": transformers.BertForSequenceClassification,
    "multi_label_classification": transformers.BertForSequenceClassification,
    "regression": transformers.BertForSequenceClassification,
    "token_classification": transformers.BertForTokenClassification,
    "multiple_choice": transformers.BertForMultipleChoice,
}


@pytest.mark.parametrize("rate", [0.4, 0.0, None])
@pytest.mark.parametrize("head", CLASSIFIERS)
def test_classifiers_drop_at_the_rate_of_the_reference_and_say_so_again(tmp_path, head, rate):
    export_model(tmp_path / "there", new_model(head))
    reconfigure(tmp_path / "there", classifier_dropout=rate)
    model = import_model(tmp_path / "there")
    reference = CLASSIFIERS[head].from_pretrained(tmp_path / "there")
    assert model.config.classifier_dropout == rate
    assert model.task_head.dropout == reference.dropout.p == (0.1 if rate is None else rate)

    export_model(tmp_path / "again", model)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "again").classifier_dropout == rate
    assert_same_model(model, import_model(tmp_path / "again"))
    save_model(tmp_path / "ours", model)
    assert_same_model(model, load_model(tmp_path / "ours"))


@pytest.mark.parametrize("head", ["next_sentence", "span_prediction"])
def test_other_heads_have_no_dropout_as_in_the_reference(tmp_path, head):
    export_model(tmp_path / "there", new_model(head))
    reconfigure(tmp_path / "there", classifier_dropout=0.4)
    model = import_model(tmp_path / "there")
    heads = [module for module in model.modules() if isinstance(module, TaskHead)]
    assert [head.dropout for head in heads] == [0.0]


@pytest.mark.parametrize("rate", [1.0, -0.1, "0.1", True])
def test_an_impossible_rate_of_classifiers_is_refused(tmp_path, rate):
    export_model(tmp_path / "there", new_model())
    reconfigure(tmp_path / "there", classifier_dropout=rate)
    with pytest.raises(ValueError, match=r"config\.json must describe a BERT, but classifier_drop"):
        import_model(tmp_path / "there")


@pytest.mark.parametrize(
    ("settings", "is_read"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, True),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            False,
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, False),
    ],
)
def test_a_function_over_the_logits_is_refused_unless_it_does_nothing(tmp_path, settings, is_read):
    """0.205 of the head is 0.551 after the sigmoid that the model's own loader applies."""
    export_model(tmp_path / "one", build_model("regression", small_config()))
    reconfigure(tmp_path / "one", **settings)
    if is_read:
        import_model(tmp_path / "one")
    else:
        with pytest.raises(ValueError, match="which sentence-transformers applies"):
            import_model(tmp_path / "one")
