"""Score, size and speed of int8, by ONNX Runtime's quantizer and by torchao's.

    python benchmarks/int8.py --encoder all-MiniLM-L6-v2
    python benchmarks/int8.py --encoder all-MiniLM-L6-v2 --items 2000 --tasks stsb

An encoder is fine-tuned with our loop for SST-2, STS-B and the tags of WNUT-17, from the files in
../shared/data. Then each side predicts the whole held-out part in batches of similar lengths: our
model, the exported ONNX file, and both quantized models. torchao (`pip install torchao`) quantizes
the torch model instead of the ONNX file, which then uses the plain backend.
"""

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, one_of, report
from bert_core.backends.operations import use_backend
from bert_core.hugging_face import import_model
from bert_core.model.catalogue import Model
from bert_core.model.layers import FeedForward, Linear
from bert_core.onnx import MODEL_FILE, QUANTIZED_FILE, OnnxModel, quantize, write_onnx_folder
from bert_core.training.initialization import load_encoder_into
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import ArtifactStore
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.tasks import Items, Reading, family
from pipelines.tasks.encoding.sequences import shuffled

DATA = ROOT.parent / "shared" / "data"
TASKS = {  # family, training file, held-out file, epochs, rate
    "SST-2": ("classification", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv", 1, 1e-4),
    "STS-B": ("regression", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv", 3, 1e-4),
    "WNUT-17": ("tagging", "ner/wnut17train.conll", "ner/emerging.dev.conll", 4, 2e-4),
}
BATCH, DROPOUT, SEED = 32, 0.1, 1


class Result(NamedTuple):
    score: float
    megabytes: float
    seconds: float


def items_of(task: str, folder: Path) -> tuple[Items, Items]:
    name, train_file, heldout_file, *_ = TASKS[task]
    source = LabelledFile(path=str(DATA / train_file), heldout_path=str(DATA / heldout_file))
    settings = DatasetSettings(family=name, source=source)
    context = StageContext(store=ArtifactStore(str(folder / "store")))
    dataset = build_dataset(settings, None, context)
    return read_items(dataset, "train"), read_items(dataset, "heldout")


def finetuned(task: str, encoder: Model, tokenizer: WordPieceTokenizer, items: Items) -> Model:
    name, _, _, epochs, rate = TASKS[task]
    task_family, config = family(name), encoder.config
    torch.manual_seed(SEED)
    config = replace(config, hidden_dropout=DROPOUT, attention_dropout=DROPOUT)
    model = task_family.build_model(config, items.labels)
    if hasattr(model, "drop_pooler"):
        model.drop_pooler()  # as fine-tuning does with an encoder of sentence vectors
    load_encoder_into(model, encoder)
    examples = task_family.examples(items, tokenizer, Reading(config.max_position_embeddings))
    num_steps = -(-len(examples) * epochs // BATCH)
    optimization = OptimizationConfig(
        num_steps=num_steps, warmup_steps=num_steps // 10, learning_rate=rate
    )
    for _ in train(
        model,
        AdamW(model, optimization),
        lambda step: [(0, examples.batch(shuffled(len(examples), SEED, step, BATCH)))],
        seed=SEED,
    ):
        pass
    return model.eval()


def quantized_by_torchao(model: Model) -> Model:
    """A copy with int8 weights and dynamically quantized activations, in torch's linear layers."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    copied = copy.deepcopy(model)
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear):
                layer = torch.nn.Linear(*child.weight.shape[::-1])
                layer.weight, layer.bias = child.weight, child.bias
                setattr(parent, name, layer)
        if isinstance(parent, FeedForward):
            parent.forward = partial(_feed_forward, parent)  # the backend takes plain tensors only
    quantize_(copied, Int8DynamicActivationInt8WeightConfig())
    return copied


def _feed_forward(layers: FeedForward, hidden: torch.Tensor) -> torch.Tensor:
    return layers.narrow(torch.nn.functional.gelu(layers.widen(hidden)))


def num_bytes(model: Model, folder: Path) -> int:
    """The size of its weights as torch saves them."""
    path = folder / "weights.pt"
    torch.save(model.state_dict(), path)
    return path.stat().st_size


def sides(model: Model, folder: Path) -> Iterator[tuple[str, Model, int]]:
    """Name, model and bytes of each side."""
    yield "ours, float32", model, num_bytes(model, folder)
    for name, file in (
        ("ONNX Runtime, float32", MODEL_FILE),
        ("ONNX Runtime, int8", QUANTIZED_FILE),
    ):
        answering = OnnxModel(folder / file, model).answering()
        yield name, answering, (folder / file).stat().st_size
    small = quantized_by_torchao(model)
    yield "torchao, int8", small, num_bytes(small, folder)


def measured(
    task: str, model: Model, tokenizer: WordPieceTokenizer, heldout: Items, turns: int
) -> dict[str, Result]:
    """Each side's score, size and best time over all held-out items; sides take turns."""
    task_family = family(TASKS[task][0])
    reading = Reading(model.config.max_position_embeddings)
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        folder = Path(scratch)
        write_onnx_folder(folder, model, tokenizer)
        quantize(folder)
        models = list(sides(model, folder))
        found: dict[str, Result] = {}
        for _ in range(turns):
            for name, each, size in models:
                is_torchao = name.startswith("torchao")
                with use_backend("plain" if is_torchao else "cpu"):
                    start = time.perf_counter()
                    answers = task_family.answers(each, tokenizer, heldout, reading)
                    seconds = time.perf_counter() - start
                score = task_family.figures(answers, heldout)[task_family.score]
                best = min(seconds, found[name].seconds if name in found else seconds)
                found[name] = Result(score, size / 1e6, best)
    return found


def main() -> None:
    """Print the table of every task and write it as a dated file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", type=one_of(TASKS), default=list(TASKS))
    parser.add_argument("--items", type=int, default=16_000, help="maximum, to train on")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    encoder = import_model(arguments.encoder)
    tokenizer = WordPieceTokenizer.from_directory(arguments.encoder)
    lines = [
        "| task | side | score | MB | seconds | items/s |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for task in arguments.tasks:
            items, heldout = items_of(task, Path(scratch))
            train_items = Items(items.rows[: arguments.items], items.labels)
            model = finetuned(task, encoder, tokenizer, train_items)
            count = len(heldout.rows)
            for side, result in measured(task, model, tokenizer, heldout, arguments.turns).items():
                lines.append(
                    f"| {task} | {side} | {result.score:.4f} | {result.megabytes:.1f} | "
                    f"{result.seconds:.2f} | {count / result.seconds:,.0f} |"
                )
                print(lines[-1], flush=True)
    trained = f"Trained on at most {arguments.items:,} items, seed {SEED}; all held-out items, "
    timed = f"the best of {arguments.turns} turns; the main score of each task."
    report("int8", "Score, size and speed of int8", [trained + timed, "", *lines])


if __name__ == "__main__":
    main()
