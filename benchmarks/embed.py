"""Sentence embeddings compared with sentence-transformers, with the same weights.

    python benchmarks/embed.py
    python benchmarks/embed.py --sentences 2000 --turns 3

Theirs: `SentenceTransformer.encode` in float32 with its default batch size, with 128, and tuned:
the default batch size, freed memory kept, in float32 and with weights in bfloat16 (it already sorts
by length and uses `scaled_dot_product_attention`). Ours: `bert_core.inference.embed` in float32,
and in bfloat16. All load the same exported folder; the vectors are compared. Sentences come from
the novels in ../shared/data; weights are random, which takes the same time.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import (
    PRECISIONS,
    ROOT,
    Side,
    Timing,
    alternate,
    matrix_side,
    report,
    serve,
)
from bert_core.backends.memory import keep_freed_memory
from bert_core.backends.precision import Precision
from bert_core.config import encoder_config
from bert_core.hugging_face import export_model, import_model
from bert_core.inference import embed
from bert_core.model.catalogue import EncoderModel
from bert_core.vocabulary import WordPieceTokenizer

DATA = ROOT.parent / "shared" / "data"
SIDES = ("ours", "ours, bf16", "theirs, batches of 32", "theirs, batches of 128")
TUNED = ("theirs tuned, bf16, batches of 32", "theirs tuned, float32, batches of 32")


def sentences(count: int) -> list[str]:
    """Sentences of 20 to 400 characters, cut at full stops, from the novels in order."""
    found: list[str] = []
    for path in sorted((DATA / "corpus" / "english_novels").glob("*.txt")):
        text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        found += [part + "." for part in text.split(". ") if 20 <= len(part) <= 400]
        if len(found) >= count:
            return found[:count]
    raise ValueError(f"the novels must have {count} sentences, found {len(found)}")


def export(folder: Path, size: str) -> None:
    torch.manual_seed(0)
    text = (DATA / "vocab" / "google_uncased_en_vocab.txt").read_text(encoding="utf-8")
    tokenizer = WordPieceTokenizer(text.removesuffix("\n").split("\n"))
    model = EncoderModel(encoder_config(size, tokenizer.vocab_size))
    export_model(folder, model, tokenizer, pooling="mean")


def our_step(folder: Path, texts: list[str], precision: Precision) -> Callable[[], None]:
    model, tokenizer = import_model(folder), WordPieceTokenizer.from_directory(folder)
    return lambda: np.save(
        folder / f"ours-{precision}.npy",
        embed(model, tokenizer, texts, precision=precision).vectors,
    )


def their_step(folder: Path, texts: list[str], side: str) -> Callable[[], None]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    batch_size = int(side.split()[-1])
    if side in TUNED:
        keep_freed_memory()
        if "bf16" in side:
            model = model.bfloat16()
    return lambda: np.save(
        folder / ("theirs-bf16.npy" if "bf16" in side else "theirs.npy"),
        model.encode(texts, batch_size=batch_size, show_progress_bar=False),
    )


def table(
    sides: dict[str, Timing], size: str, count: int, differences: dict[str, float]
) -> list[str]:
    default = sides[SIDES[2]].median_seconds
    lines = ["| side | seconds | sentences/s | over their default |", "|---|---|---|---|"]
    for name, timing in sides.items():
        seconds = timing.median_seconds
        lines.append(
            f"| {name} | {seconds:.2f} | {count / seconds:.0f} | {default / seconds:.1f}x |"
        )
    remark = (
        f"{size}, {count} sentences, float32 unless noted; medians of alternating runs. "
        f"Largest difference from their vectors: {differences['float32']:.1e} in float32, "
        f"{differences['bf16']:.1e} in bf16."
    )
    return [*lines, "", remark]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="mini")
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES + TUNED, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        texts = sentences(arguments.sentences)
        if arguments.side in SIDES[:2]:
            precision: Precision = "float32" if arguments.side == SIDES[0] else "bf16"
            step = our_step(arguments.folder, texts, precision)
        else:
            step = their_step(arguments.folder, texts, arguments.side)
        serve(step, {})
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        export(folder, arguments.size)
        shared = ["--sentences", str(arguments.sentences), "--folder", str(folder)]
        commands = {
            side: Side([__file__, *shared, "--side", side], num_warmups=1) for side in SIDES + TUNED
        }
        rates = {precision: matrix_side(precision) for precision in PRECISIONS}
        timings = alternate({**rates, **commands}, arguments.turns)
        theirs = np.load(folder / "theirs.npy")
        differences = {
            precision: float(np.abs(np.load(folder / f"ours-{precision}.npy") - theirs).max())
            for precision in ("float32", "bf16")
        }
    sides = {name: timings[name] for name in commands}
    lines = table(sides, arguments.size, arguments.sentences, differences)
    rates = {precision: timings[precision].best_rate for precision in PRECISIONS}
    report("embed", "Sentence embeddings", lines, rates)


if __name__ == "__main__":
    main()
