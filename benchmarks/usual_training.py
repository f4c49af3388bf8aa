"""Pretraining as most people do it: `transformers`' Trainer with its collator, at its best.

    python benchmarks/usual_training.py --store FOLDER --examples NAME --out FOLDER

It reads the corpus and the tokenizer that examples of ours were made from, and cuts the texts into
full windows, as the example scripts of `transformers` do, so that no token is padding. Masks are
drawn by its collator; fused AdamW, linear decay to zero at the end of the time: the number of steps
follows from a measured rate. Neither evaluations nor the first step, which may compile, are on the
clock. `benchmarks/quality.py` runs it.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.reference_batches import padded_tokens
from bert_core.batch import PretrainingBatch
from bert_core.config import encoder_config
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.store import Artifact, ArtifactStore

HELDOUT_EXAMPLES = 1000
SETTLING_STEPS, MEASURED_WINDOWS = 10, 2000


class Windows(Dataset):
    """[N, S] token ids, row by row as the library's collator takes them."""

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._rows = rows
        self.num_tokens = rows.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self._rows[index].tolist()}


def windows(corpus: Artifact, kept: Path, tokenizer: Any, max_tokens: int) -> Windows:
    """The training texts joined and cut into [CLS] window [SEP]; the remainder is dropped.

    Tokenized once and kept in a file: this counts in no side's time.
    """
    if not kept.is_file():
        parts: list[NDArray[np.int32]] = []
        for name in corpus.names("train-"):
            with pa.memory_map(str(corpus.local(name))) as source:
                documents = pa.ipc.open_file(source).read_all().column("sentences").to_pylist()
            for document in documents:
                ids = tokenizer(" ".join(document), add_special_tokens=False, verbose=False)
                parts.append(np.array(ids["input_ids"], dtype=np.int32))
        stream = np.concatenate(parts)
        rows = stream[: stream.size // (max_tokens - 2) * (max_tokens - 2)]
        rows = rows.reshape(-1, max_tokens - 2)
        special = np.full((len(rows), 1), tokenizer.cls_token_id, dtype=np.int32)
        ends = np.full_like(special, tokenizer.sep_token_id)
        np.save(kept, np.concatenate([special, rows, ends], axis=1))
    return Windows(np.load(kept, mmap_mode="r"))


def input_of(store: ArtifactStore, artifact: Artifact, kind: str) -> Artifact:
    """The artifact of a kind that `artifact` was made from."""
    made_from = store.find(kind, artifact.manifest.inputs[kind])
    assert made_from is not None
    return made_from


@torch.no_grad()
def heldout_loss(model: Any, examples: Artifact) -> float:
    """Loss of the masked tokens of the held-out examples, in float32."""
    model.eval()
    loss = count = 0.0
    reader = ExampleReader(examples, "heldout")
    for _, batch in evaluation_batches(reader, 8192, max_examples=HELDOUT_EXAMPLES):
        assert isinstance(batch, PretrainingBatch)
        inputs = padded_tokens(batch.tokens)
        # Of the class: the Trainer gave this very object one that computes in its precision.
        logits = type(model).forward(model, **inputs).logits
        logits = logits[inputs["attention_mask"].bool()][batch.masked_positions].float()
        loss += float(F.cross_entropy(logits, batch.masked_labels, reduction="sum"))
        count += batch.masked_labels.numel()
    model.train()
    return loss / count


class Clock:
    """Seconds of training: stopped while something else is done."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None

    def stop(self) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None

    def start(self) -> None:
        self._since = time.perf_counter()


def train(arguments: argparse.Namespace, num_steps: int, num_points: int) -> dict[str, Any]:
    """Train `num_steps` steps; the curve has `num_points` points beside the last."""
    from transformers import (
        BertForMaskedLM,
        DataCollatorForLanguageModeling,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    from benchmarks.usual_stack import their_config

    set_seed(arguments.seed)
    store = ArtifactStore(arguments.store)
    examples = store.find("examples", arguments.examples)
    assert examples is not None
    reader = ExampleReader(examples, "train")
    vocabulary = input_of(store, examples, "vocabulary")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(vocabulary.local_folder()))
    kept = Path(arguments.out).parent / "windows.npy"
    data = windows(input_of(store, examples, "corpus"), kept, tokenizer, reader.max_tokens)
    config = encoder_config(
        arguments.size,
        reader.vocab_size,
        max_position_embeddings=reader.max_tokens,
        hidden_dropout=arguments.dropout,
        attention_dropout=arguments.dropout,
    )
    model = BertForMaskedLM(their_config(config, attn_implementation="sdpa"))
    clock, curve = Clock(), []
    step_seconds: list[float] = []
    is_first = int(os.environ.get("RANK", "0")) == 0

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.stop()
            step_seconds.append(clock.seconds)
            is_last = state.global_step == num_steps
            every = max(1, num_steps // (num_points + 1)) if num_points else num_steps
            if is_last or (num_points and state.global_step % every == 0):
                tokens = state.global_step * arguments.batch * data.num_tokens
                loss = heldout_loss(model, examples)
                curve.append({"seconds": clock.seconds, "loss": loss, "tokens": tokens})
                if is_first:
                    print(json.dumps(curve[-1]), file=sys.stderr, flush=True)
            clock.start()

    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(Path(arguments.out) / "trainer"),
            use_cpu=True,
            bf16=arguments.precision == "bf16",
            torch_compile=arguments.compiled,
            optim="adamw_torch_fused",
            learning_rate=arguments.learning_rate,
            weight_decay=0.01,
            warmup_steps=round(num_steps * arguments.warm_up),
            lr_scheduler_type="linear",
            per_device_train_batch_size=arguments.batch // num_ranks,
            max_steps=num_steps,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            ddp_backend="gloo" if num_ranks > 1 else None,
            ddp_find_unused_parameters=False,
            seed=arguments.seed,
        ),
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        callbacks=[Watch()],
    )
    trainer.train()
    if is_first:
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)
    settled = step_seconds[SETTLING_STEPS:]
    rate = (len(settled) - 1) / (settled[-1] - settled[0]) if len(settled) > 1 else 0.0
    return {"curve": curve, "steps_per_second": rate, "num_steps": num_steps}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--examples", required=True, help="their fingerprint")
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0, help="measured steps a second")
    parser.add_argument("--precision", choices=("bf16", "float32"), default="float32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warm-up", type=float, default=0.1, help="share of the steps")
    parser.add_argument("--dropout", type=float, default=0.0)  # few epochs
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    num_steps = round(arguments.minutes * 60 * arguments.rate)
    points = arguments.points if num_steps else 0
    measured = SETTLING_STEPS + MEASURED_WINDOWS // arguments.batch
    result = train(arguments, num_steps or measured, points)
    result_file = Path(arguments.out) / "result.json"
    result_file.write_text(json.dumps({**vars(arguments), **result}))


if __name__ == "__main__":
    main()
