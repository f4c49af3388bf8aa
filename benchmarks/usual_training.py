"""Pretraining as most people do it: `transformers`' Trainer with its collator, at its best.

    python benchmarks/usual_training.py --head mlm --store FOLDER --examples NAME --out FOLDER

It reads the corpus and the tokenizer that examples of ours were made from: `mlm` cuts the texts
into full windows, as the example scripts of `transformers` do, so that no token is padding;
`pretraining` takes our sentence pairs, because the library has no maker of its own. Masks are drawn
by its collator. bf16, fused AdamW, linear decay to zero at the end of the time: the number of steps
follows from a measured rate. Evaluations are not on the clock. `benchmarks/quality.py` runs it.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.reference_batches import padded_tokens
from benchmarks.usual_data import Pairs, Windows, windows
from bert_core.batch import PretrainingBatch
from bert_core.config import EncoderConfig, encoder_config
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches
from pipelines.store import Artifact, ArtifactStore

HEADS = ("mlm", "pretraining")
HELDOUT_EXAMPLES = 1000
SETTLING_STEPS, MEASURED_STEPS = 10, 40


def input_of(store: ArtifactStore, artifact: Artifact, kind: str) -> Artifact:
    """The artifact of a kind that `artifact` was made from."""
    found = store.find(kind, artifact.manifest.inputs[kind])
    assert found is not None
    return found


@torch.no_grad()
def heldout_loss(model: Any, examples: Artifact) -> tuple[float, float]:
    """Loss and accuracy of the masked tokens of the held-out examples, in float32."""
    model.eval()
    loss = correct = count = 0.0
    reader = ExampleReader(examples, "heldout")
    for _, batch in evaluation_batches(reader, 8192, max_examples=HELDOUT_EXAMPLES):
        assert isinstance(batch, PretrainingBatch)
        inputs = padded_tokens(batch.tokens)
        # Of the class: the Trainer gave this very object one that computes in bf16.
        outputs = type(model).forward(model, **inputs)
        logits = outputs.logits if "logits" in outputs else outputs.prediction_logits
        logits = logits[inputs["attention_mask"].bool()][batch.masked_positions].float()
        loss += float(F.cross_entropy(logits, batch.masked_labels, reduction="sum"))
        correct += float((logits.argmax(-1) == batch.masked_labels).sum())
        count += batch.masked_labels.numel()
    model.train()
    return loss / count, correct / count


def new_model(head: str, config: EncoderConfig) -> torch.nn.Module:
    from transformers import BertForMaskedLM, BertForPreTraining

    from benchmarks.usual_stack import their_config

    made = their_config(config, attn_implementation="sdpa")
    return BertForMaskedLM(made) if head == "mlm" else BertForPreTraining(made)


class Clock:
    """Seconds of training: stopped while something else is done."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = time.perf_counter()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self._since

    def start(self) -> None:
        self._since = time.perf_counter()


def train(arguments: argparse.Namespace, num_steps: int, num_points: int) -> dict[str, Any]:
    """Train `num_steps` steps; the curve has `num_points` points beside the last."""
    from transformers import (
        DataCollatorForLanguageModeling,
        PreTrainedTokenizerFast,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

    set_seed(arguments.seed)
    store = ArtifactStore(arguments.store)
    examples = store.find("examples", arguments.examples)
    assert examples is not None
    reader = ExampleReader(examples, "train")
    vocabulary = input_of(store, examples, "vocabulary")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(vocabulary.local_folder()))
    if arguments.head == "mlm":
        data: Windows | Pairs = windows(
            input_of(store, examples, "corpus"),
            Path(arguments.out).parent / "windows.npy",
            tokenizer,
            reader.max_tokens,
        )
    else:
        data = Pairs(examples)
    config = encoder_config(
        arguments.size,
        reader.vocab_size,
        max_position_embeddings=reader.max_tokens,
        hidden_dropout=arguments.dropout,
        attention_dropout=arguments.dropout,
    )
    model = new_model(arguments.head, config)
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
                loss, accuracy = heldout_loss(model, examples)
                tokens = state.global_step * arguments.batch * data.mean_tokens
                curve.append(
                    {"seconds": clock.seconds, "loss": loss, "accuracy": accuracy, "tokens": tokens}
                )
                if is_first:
                    print(json.dumps(curve[-1]), file=sys.stderr, flush=True)
            clock.start()

    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(Path(arguments.out) / "trainer"),
            use_cpu=True,
            bf16=True,
            optim="adamw_torch_fused",
            learning_rate=arguments.learning_rate,
            weight_decay=0.01,
            warmup_steps=num_steps // 10,
            lr_scheduler_type="linear",
            per_device_train_batch_size=arguments.batch // num_ranks,
            max_steps=num_steps,
            # Windows are all alike; pairs of like lengths go together: little is padding.
            train_sampling_strategy="random" if arguments.head == "mlm" else "group_by_length",
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
    clock.start()
    trainer.train()
    if is_first and arguments.out:
        model.save_pretrained(arguments.out)
        tokenizer.save_pretrained(arguments.out)
    settled = step_seconds[SETTLING_STEPS:] or step_seconds
    rate = (len(settled) - 1) / (settled[-1] - settled[0]) if len(settled) > 1 else 0.0
    return {"curve": curve, "steps_per_second": rate, "num_steps": num_steps}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", choices=HEADS, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--examples", required=True, help="their fingerprint")
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, help="steps a second, where they were measured")
    parser.add_argument("--steps", type=int, help="instead of the minutes")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.0)  # less than an epoch
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    rate = arguments.rate
    if not arguments.steps and not rate:
        rate = train(arguments, SETTLING_STEPS + MEASURED_STEPS, 0)["steps_per_second"]
    num_steps = arguments.steps or max(1, round(arguments.minutes * 60 * rate))
    told = train(arguments, num_steps, arguments.points)
    (Path(arguments.out) / "told.json").write_text(json.dumps({**vars(arguments), **told}))


if __name__ == "__main__":
    main()
