"""BERT with a head over the mean of all tokens. It lies in the folders of exported models.

`transformers` has no class for it: open it with `trust_remote_code=True`.
"""

import torch
from torch import nn
from transformers import BertModel, BertPreTrainedModel
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput


class MeanClassifier(nn.Module):
    """A linear layer. Its weight has a dimension more than those of the published heads, which read
    the first token through another layer: they refuse it, and give no answers of random weights.
    """

    def __init__(self, config, num_outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, num_outputs, config.hidden_size))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        nn.init.normal_(self.weight, std=config.initializer_range)

    def forward(self, vectors):
        return nn.functional.linear(vectors, self.weight[0], self.bias)


class MeanBert(BertPreTrainedModel):
    """The encoder, and what a head gives for the mean of each text's tokens."""

    def __init__(self, config, num_outputs):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = BertModel(config, add_pooling_layer=False)
        rate = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.classifier = MeanClassifier(config, num_outputs)
        self.post_init()

    def _init_weights(self, module):
        if not isinstance(module, MeanClassifier):
            super()._init_weights(module)

    def logits(self, input_ids, attention_mask, token_type_ids):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        mask = attention_mask[..., None].to(states.dtype)
        return self.classifier(self.dropout((states * mask).sum(dim=1) / mask.sum(dim=1)))


class MeanBertForSequenceClassification(MeanBert):
    """[B, C] logits of texts or pairs of texts; one number each where the problem is regression."""

    def __init__(self, config):
        super().__init__(config, config.num_labels)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, **_):
        logits, loss = self.logits(input_ids, attention_mask, token_type_ids), None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class MeanBertForMultipleChoice(MeanBert):
    """[B, C] logits of the choices of each text."""

    def __init__(self, config):
        super().__init__(config, 1)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, **_):
        flat = [
            None if each is None else each.flatten(0, 1)
            for each in (input_ids, attention_mask, token_type_ids)
        ]
        logits, loss = self.logits(*flat).view(input_ids.shape[:2]), None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits)
