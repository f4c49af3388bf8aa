"""What the published configuration calls our settings and heads."""

from typing import Final

# Ours: theirs.
CONFIG_NAMES: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "causal": "is_decoder",
    "positions": "positions",  # not known there; its tables are written as learned ones
}
# Architectures whose tensors do not tell their task.
TASKS: Final = {
    "BertForSequenceClassification": "sequence_classification",
    "BertForTokenClassification": "token_classification",
    "BertForMultipleChoice": "multiple_choice",
    "BertForQuestionAnswering": "span_prediction",
    "BertLMHeadModel": "language_model",
}
# What the heads of a BertForSequenceClassification call their task.
PROBLEMS: Final = {
    "sequence_classification": "single_label_classification",
    "multi_label_classification": "multi_label_classification",
    "regression": "regression",
}
