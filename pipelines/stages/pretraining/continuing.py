"""The model that pretraining starts from: new, or an existing encoder that fits."""

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.config import encoder_config, size_of
from bert_core.model.catalogue import LanguageModel, PretrainingModel
from bert_core.model.preparation import (
    WORD_VECTOR_SCALE,
    attend_to_neighbours,
    begin_as_word_vectors,
    predict_frequencies,
    resize_positions,
    resize_vocabulary,
)
from bert_core.training.state import load_encoder_into, load_model, read_config
from bert_core.vocabulary import WordPieceTokenizer
from bert_core.word_vectors import Cooccurrences, word_vectors
from pipelines.errors import UserError
from pipelines.stage import Observer, ignore
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining.figures import TokenModel, counted_tokens
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact
from pipelines.train.imported import config_of
from pipelines.train.ranks import sum_over_ranks
from pipelines.train.settings import resolved_rate

_WITH_VOCABULARY = (PretrainingModel.head_name, LanguageModel.head_name)


def settings_for(
    settings: PretrainingSettings,
    encoder: Artifact,
    examples: Artifact,
    vocabulary: Artifact,
    observe: Observer = ignore,
) -> PretrainingSettings:
    """`settings` with what follows from the encoder: fingerprint, size, rate, how heads begin.

    The size is None for one without a name. Raises UserError where the examples are in other tokens
    than the encoder's.
    """
    config = config_of(encoder)
    tokenizer = WordPieceTokenizer.from_directory(encoder.local_folder())
    ours = load_tokenizer(vocabulary)
    is_same = ours.tokens[: tokenizer.vocab_size] == tokenizer.tokens
    if not is_same or ours.normalization != tokenizer.normalization:
        raise UserError(
            f"the vocabulary {vocabulary.fingerprint} of the examples does not begin with the "
            "tokens of pretraining.encoder; set vocabulary.encoder to the same encoder and build "
            "the examples again"
        )
    head = read_config(encoder.local_folder())["head"]
    return settings.model_copy(
        update={
            "encoder": encoder.fingerprint,
            "size": size_of(config),
            "learning_rate": resolved_rate(settings.learning_rate, "pretraining", config, observe),
            "initialization": "published" if head in _WITH_VOCABULARY else "frequencies",
        }
    )


def check_objective(examples: ExampleSettings, encoder: Artifact) -> None:
    """Raise UserError unless a causal encoder is asked for the next token, and no other one."""
    is_causal = config_of(encoder).causal
    if is_causal != (examples.objective == "clm"):
        trained_on = "clm" if is_causal else "mlm or mlm_nsp"
        raise UserError(
            f"the encoder that pretraining.encoder names was pretrained with the objective "
            f"{trained_on}, not {examples.objective}; set examples.objective or choose another "
            "encoder"
        )


def continued_model(
    settings: PretrainingSettings, encoder: Artifact, examples: Artifact
) -> TokenModel:
    """A model that starts from the encoder's weights, and from its heads where it has them.

    It reads as many positions and tokens as the examples have: new positions repeat the old ones,
    new tokens start as the mean of all that the encoder has. Its table may be longer than its
    vocabulary, padded with rows that nothing ever trained: new tokens do not begin with these.
    """
    read = ExampleSettings.model_validate(examples.manifest.settings)
    source = load_model(encoder.local_folder())
    if read.max_tokens > source.config.max_position_embeddings:
        resize_positions(source, read.max_tokens)
    vocab_size: int = examples.statistics["vocab_size"]
    num_own = WordPieceTokenizer.from_directory(encoder.local_folder()).vocab_size
    if vocab_size > num_own:
        resize_vocabulary(source, num_own)
    if vocab_size > source.config.vocab_size:
        resize_vocabulary(source, vocab_size)
    config = replace(
        source.config, hidden_dropout=settings.dropout, attention_dropout=settings.dropout
    )
    model: TokenModel
    if read.objective == "clm":
        model = LanguageModel(config)
    else:
        model = PretrainingModel(config, next_sentence=read.objective == "mlm_nsp")
    load_encoder_into(model, source)
    model.embedding = source.embedding
    return model


_MOST_TOKENS: Final = 20_000_000  # counted in ten seconds
_MOST_CONTEXTS: Final = 8192  # the most frequent tokens


def new_model(settings: PretrainingSettings, examples: Artifact) -> TokenModel:
    """A model with random weights, as many positions as the longest examples have."""
    read = ExampleSettings.model_validate(examples.manifest.settings)
    assert settings.size is not None, "only an encoder to go on from may have a size without a name"
    config = encoder_config(
        settings.size,
        examples.statistics["vocab_size"],
        max_position_embeddings=read.max_tokens,
        hidden_dropout=settings.dropout,
        attention_dropout=settings.dropout,
        causal=read.objective == "clm",
    )
    if read.objective == "clm":
        return LanguageModel(config)
    return PretrainingModel(config, next_sentence=read.objective == "mlm_nsp")


def begin_informed(
    model: TokenModel,
    settings: PretrainingSettings,
    examples: Artifact,
    counts: NDArray[np.int64],
    rank: int,
) -> None:
    """Let `model` begin as `initialization` says; all ranks call it.

    `counts` [V] says how often each token occurs in the training examples.
    """
    if settings.initialization == "informed":
        width = model.config.hidden_size
        vectors = example_vectors(examples, counts, width, settings.seed, rank)
        begin_as_word_vectors(model.encoder, vectors)
        attend_to_neighbours(model.encoder, seed=settings.seed, embedding_scale=WORD_VECTOR_SCALE)
    # A published table may be longer than its vocabulary: nothing asks for the rows beyond it.
    num_rows = model.vocabulary_head.bias.numel()
    padded = np.pad(counts, (0, num_rows - len(counts)))
    predict_frequencies(model.vocabulary_head, torch.from_numpy(padded))


def example_vectors(
    examples: Artifact, counts: NDArray[np.int64], width: int, seed: int, rank: int = 0
) -> Tensor:
    """[V, width] vectors of the tokens that `counts` [V] says occur; all ranks call it.

    The first rank makes them and the others receive them: they begin with the same bits. A token
    that is never asked for has a count of 0, and no vector.
    """
    vectors = np.zeros((len(counts), width), np.float32)
    if rank == 0:
        is_counted = counts > 0
        most_frequent = np.argsort(-counts, kind="stable")[:_MOST_CONTEXTS]
        cooccurrences = Cooccurrences(len(counts), most_frequent[is_counted[most_frequent]])
        for ids in counted_tokens(examples, _MOST_TOKENS):
            cooccurrences.add(ids.flatten().to_numpy(), np.asarray(ids.offsets), is_counted)
        known = min(
            width, *cooccurrences.counts.shape
        )  # of a vocabulary smaller than the encoder is wide
        vectors[:, :known] = word_vectors(cooccurrences, known, seed=seed).numpy()
    return torch.from_numpy(sum_over_ranks(vectors))
