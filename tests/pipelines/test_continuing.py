"""Going on from an encoder: its tokenizer, its weights and its heads, resized where asked."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bert_core.config import encoder_config
from bert_core.hugging_face import export_model
from bert_core.model.catalogue import PretrainingModel, build_model
from bert_core.model.preparation import resize_vocabulary
from bert_core.training.state import load_encoder_into, load_model, save_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.continuing import (
    begin_informed,
    check_objective,
    continued_model,
    settings_for,
)
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary, load_tokenizer
from pipelines.store import ArtifactStore
from pipelines.train.imported import existing_encoder, import_folder


@pytest.fixture(scope="module")
def source(small_vocabulary) -> PretrainingModel:
    torch.manual_seed(11)
    model = PretrainingModel(
        encoder_config("tiny", small_vocabulary.statistics["size"], max_position_embeddings=32)
    )
    with torch.no_grad():
        model.vocabulary_head.bias.normal_()
    return model


@pytest.fixture(scope="module", params=["ours", "hugging_face"])
def folder(request, source, small_vocabulary, tmp_path_factory) -> Path:
    """A model folder of either kind, with its tokenizer."""
    path = tmp_path_factory.mktemp("model") / "model"
    tokenizer = load_tokenizer(small_vocabulary)
    if request.param == "ours":
        save_model(path, source)
        tokenizer.save(path)
    else:
        export_model(path, source, tokenizer)
    return path


def examples_in(vocabulary, corpus, context, **settings):
    chosen = ExampleSettings(**{"max_tokens": 64, "shard_tokens": 4000, **settings})
    return build_examples(chosen, corpus, vocabulary, context)


def test_its_tokenizer_is_taken_over_and_its_weights_are_where_training_begins(
    folder, source, small_corpus, small_vocabulary, small_context
):
    wanted = VocabularySettings(encoder=str(folder))
    vocabulary = build_vocabulary(wanted, small_corpus, small_context)
    encoder = existing_encoder(str(folder), small_context)
    assert vocabulary.manifest.inputs["encoder"] == encoder.fingerprint
    assert "corpus" not in vocabulary.manifest.inputs
    assert load_tokenizer(vocabulary).tokens == load_tokenizer(small_vocabulary).tokens
    examples = examples_in(vocabulary, small_corpus, small_context)
    settings = settings_for(PretrainingSettings(), encoder, examples, vocabulary)
    assert (settings.encoder, settings.size) == (encoder.fingerprint, "tiny")
    model = continued_model(settings, encoder, examples)
    theirs = source.state_dict()
    for name, values in model.state_dict().items():
        if name == "encoder.embeddings.position":
            assert torch.equal(values, theirs[name].repeat(2, 1))  # 64 positions from 32
        else:
            assert torch.equal(values, theirs[name]), name


def test_a_folder_is_named_by_what_is_in_it(folder, small_context, tmp_path):
    first = existing_encoder(str(folder), small_context)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for file in folder.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    again = existing_encoder(str(moved), small_context)
    assert again.reused and again.fingerprint == first.fingerprint
    assert existing_encoder(first.fingerprint, small_context).fingerprint == first.fingerprint
    (moved / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(UserError, match="hold different vocabularies"):
        existing_encoder(str(moved), small_context)


def published(path, model, tokenizer, architecture, **more) -> Path:
    """A folder as Hugging Face has it, with other tensors or another architecture."""
    export_model(path, model, tokenizer)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, **more}, path / "model.safetensors", {"format": "pt"})
    return path


def test_of_a_model_with_an_unknown_head_the_encoder_is_taken_where_that_is_said(
    source, small_vocabulary, small_context, tmp_path
):
    bare = build_model("encoder", source.config)
    load_encoder_into(bare, source)
    crf = {"crf.transitions": torch.ones(3, 3)}
    tokenizer = load_tokenizer(small_vocabulary)
    folder = published(tmp_path / "model", bare, tokenizer, "BertCrfForNer", **crf)
    with pytest.raises(UserError, match=r"unexpected: crf\.transitions; name the head to keep"):
        existing_encoder(str(folder), small_context)
    encoder = import_folder(folder, small_context, source="theirs", head="encoder")
    assert encoder.statistics["head"] == "encoder"
    kept = load_model(encoder.local_folder()).state_dict()
    assert torch.equal(kept["encoder.embeddings.token"], source.encoder.embeddings.token)


def test_examples_in_other_tokens_or_for_another_objective_are_refused(
    folder, small_corpus, small_context
):
    encoder = existing_encoder(str(folder), small_context)
    other = build_vocabulary(VocabularySettings(size=180), small_corpus, small_context)
    examples = examples_in(other, small_corpus, small_context)
    with pytest.raises(UserError, match=r"does not begin with the tokens of pretraining\.encoder"):
        settings_for(PretrainingSettings(), encoder, examples, other)
    with pytest.raises(UserError, match=r"the objective mlm or mlm_nsp, not clm"):
        check_objective(ExampleSettings(objective="clm"), encoder)


def test_tokens_that_a_vocabulary_adds_do_not_begin_with_rows_that_nothing_trained(
    source, small_corpus, small_vocabulary, small_context, tmp_path
):
    padded = PretrainingModel(source.config)
    padded.load_state_dict(source.state_dict())
    resize_vocabulary(padded, source.config.vocab_size + 6)  # to a multiple of 64, or of 8
    with torch.no_grad():
        padded.encoder.embeddings.token[-6:] = 100.0
        padded.vocabulary_head.bias[-6:] = 100.0
    save_model(tmp_path, padded)
    load_tokenizer(small_vocabulary).save(tmp_path)
    encoder = existing_encoder(str(tmp_path), small_context)
    for added in (4, 10):  # within the padding, and beyond
        before = load_tokenizer(small_vocabulary)
        tokens = [*before.tokens, *(f"word{number}" for number in range(added))]
        WordPieceTokenizer(tokens, before.normalization).save(tmp_path / f"longer-{added}")
        settings = VocabularySettings(tokenizer=str(tmp_path / f"longer-{added}"))
        vocabulary = build_vocabulary(settings, small_corpus, small_context)
        examples = examples_in(vocabulary, small_corpus, small_context)
        chosen = settings_for(PretrainingSettings(), encoder, examples, vocabulary)
        model = continued_model(chosen, encoder, examples)
        new, old = model.encoder.embeddings.token[-added:], source.encoder.embeddings.token
        torch.testing.assert_close(new, old.mean(dim=0).expand(added, -1))
        likely = source.vocabulary_head.bias.mean().expand(added)
        torch.testing.assert_close(model.vocabulary_head.bias[-added:], likely)


def test_a_new_head_of_a_padded_table_begins_at_the_frequencies(source):
    counts = np.arange(source.config.vocab_size)
    padded = PretrainingModel(replace(source.config, vocab_size=len(counts) + 6))
    settings = PretrainingSettings(initialization="frequencies")
    begin_informed(padded, settings, None, counts, rank=0)  # asks the examples for nothing
    shares = padded.vocabulary_head.bias.detach().softmax(dim=0)[: len(counts)]
    shares /= torch.from_numpy(counts + 1)
    torch.testing.assert_close(shares, shares.mean().expand(len(counts)))


@pytest.mark.slow
def test_a_training_that_goes_on_is_named_by_its_encoder_and_begins_where_that_was(
    source, small_corpus, small_vocabulary, small_context, local_ray, tmp_path
):
    save_model(tmp_path / "model", source)
    load_tokenizer(small_vocabulary).save(tmp_path / "model")
    context = replace(
        small_context, store=ArtifactStore(tmp_path / "store"),
        runtime=RuntimeSettings(training_workers=1, cpus_per_worker=1),
    )  # fmt: skip
    reference = str(tmp_path / "model")
    vocabulary = build_vocabulary(VocabularySettings(encoder=reference), small_corpus, context)
    examples = examples_in(vocabulary, small_corpus, context, max_tokens=32)
    settings = PretrainingSettings(
        encoder=reference, num_steps=2, learning_rate=1e-8, global_batch_size=4,
        micro_batch_size=2, evaluation_examples=8, final_evaluation_examples=8,
    )  # fmt: skip
    encoder = build_encoder(settings, examples, vocabulary, context)
    started_from = existing_encoder(reference, context).fingerprint
    assert encoder.manifest.inputs["encoder"] == started_from
    by_name = settings.model_copy(update={"encoder": started_from})
    assert build_encoder(by_name, examples, vocabulary, context).reused
    ours = load_model(encoder.local_folder()).state_dict()
    for name, values in source.state_dict().items():
        np.testing.assert_allclose(ours[name].numpy(), values.numpy(), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("head", ["encoder", "pretraining"])
def test_what_follows_from_an_encoder_is_settled_before_its_successor_is_named(
    head, source, small_corpus, small_vocabulary, small_context, tmp_path
):
    model = source if head == "pretraining" else build_model("encoder", source.config)
    save_model(tmp_path, model)
    load_tokenizer(small_vocabulary).save(tmp_path)
    encoder = existing_encoder(str(tmp_path), small_context)
    wanted = VocabularySettings(encoder=str(tmp_path))
    vocabulary = build_vocabulary(wanted, small_corpus, small_context)
    examples = examples_in(vocabulary, small_corpus, small_context)
    asked = PretrainingSettings(encoder=str(tmp_path), learning_rate="auto")
    chosen = settings_for(asked, encoder, examples, vocabulary)
    assert chosen.learning_rate == 5e-4  # of BERT-tiny
    # A new head would bend the encoder until it answers each token as often as it occurs.
    assert chosen.initialization == ("frequencies" if head == "encoder" else "published")
    assert PretrainingSettings.model_validate(chosen.model_dump()) == chosen
    mine = settings_for(
        asked.model_copy(update={"learning_rate": 2e-5}), encoder, examples, vocabulary
    )
    assert mine.learning_rate == 2e-5
