"""Models and runs on disk: whole or not there, and never with a tensor nobody asked for."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file

from bert_core.model.catalogue import build_model
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import (
    Position,
    load_checkpoint,
    load_model,
    save_checkpoint,
    save_model,
)
from tests.bert_core.batches import small_config
from tests.bert_core.test_hugging_face import HEADS, assert_same_model, new_model
from tests.bert_core.test_loop import new_run


@pytest.mark.parametrize("head", HEADS)
def test_a_saved_model_is_loaded_with_its_head_and_every_bit(tmp_path, head):
    model = new_model(head)
    save_model(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model")
    assert_same_model(model, loaded)
    assert getattr(loaded, "labels", None) == getattr(model, "labels", None)


def test_a_folder_in_use_is_not_overwritten(tmp_path):
    save_model(tmp_path / "model", new_model())
    with pytest.raises(ValueError, match="must be new or empty"):
        save_model(tmp_path / "model", new_model())
    (tmp_path / "empty").mkdir()
    save_model(tmp_path / "empty", new_model())
    load_model(tmp_path / "empty")


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """What a full disk is to the libraries that write; each of them has an error of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_is_an_error_of_the_system_whichever_file_meets_it(tmp_path):
    model, optimizer = new_run()
    save_checkpoint(tmp_path / "whole", model, optimizer, Position(seed=0, step=1))
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").iterdir()}
    assert sizes["model.safetensors"] < sizes["training_state.pt"]
    for name, size in sizes.items():
        if name != "config.json":
            with files_no_larger_than(size - 1), pytest.raises(OSError, match=name):
                save_checkpoint(tmp_path / "full", model, optimizer, Position(seed=0, step=1))
            assert not (tmp_path / "full").exists()


def test_a_checkpoint_holds_no_code(tmp_path):
    model, optimizer = new_run()
    save_checkpoint(tmp_path / "step-1", model, optimizer, Position(seed=4, step=1))
    names = sorted(path.name for path in (tmp_path / "step-1").iterdir())
    assert names == ["config.json", "model.safetensors", "training_state.pt"]
    stored = torch.load(tmp_path / "step-1" / "training_state.pt", weights_only=True)
    assert stored["position"] == {"seed": 4, "step": 1}


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    model, optimizer = new_run()
    save_checkpoint(tmp_path / "step-1", model, optimizer, Position(seed=0, step=1))
    settings = OptimizationConfig(num_steps=1)
    for other, message in (
        (build_model("pretraining", small_config(num_layers=1)), "num_layers 2 instead of 1"),
        (build_model("encoder", small_config()), "not an encoder model"),
    ):
        with pytest.raises(ValueError, match=message):
            load_checkpoint(tmp_path / "step-1", other, AdamW(other, settings))


def test_missing_and_unexpected_tensors_are_listed(tmp_path):
    folder, renamed = tmp_path / "model", "encoder.layers.0.attention.to_out.bias"
    save_model(folder, new_model("pretraining"))
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.extra"] = tensors.pop(renamed).clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"missing {renamed}; unexpected encoder.extra"):
        load_model(folder)


def test_what_is_no_saved_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_model(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="has to be imported first"):
        load_model(tmp_path / "other")
