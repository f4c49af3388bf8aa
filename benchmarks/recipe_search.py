"""Which recipe is best for the same examples? Trials of the demo's pretraining.

    python benchmarks/recipe_search.py                       # all trials, two at once on two cores
    python benchmarks/recipe_search.py --only informed,masks --steps 375
    python benchmarks/recipe_search.py --home FOLDER         # resume: finished trials are reused

Each trial changes what its name says in the trial it builds on, and is one Ray task on one CPU: a
whole training run through the stage, so its curve is in MLflow (the tracker of `--home`, or
MLFLOW_TRACKING_URI) and its artifact is reused. Corpus, vocabulary and examples are the demo's.
Held-out figures are those of 2,000 examples; the number of steps is fixed, so a busy machine
changes nothing. The conclusions are in docs/recipes.md and docs/log.md.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from pipelines.artifacts import Artifact
from pipelines.cluster.connection import connect, disconnect, nodes
from pipelines.recipes.files import read_recipe
from pipelines.recipes.models import EndToEndRecipe
from pipelines.recipes.runtime import RuntimeSettings
from pipelines.stage import Ranks
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.stage import build_vocabulary

import ray  # isort: skip  (after the connection, which sets its environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial changes in another one."""

    builds_on: str | None
    settings: Mapping[str, Any]  # of pretraining
    steps_factor: float = 1.0  # multiplies the number of steps
    examples: Mapping[str, Any] = field(default_factory=dict)


BASE = {
    "size": "tiny",
    "dropout": 0.0,
    "global_batch_size": 32,
    "micro_batch_size": 32,
    "optimizer": "adamw",
    "learning_rate": 2e-3,
    "evaluation_examples": 512,
    "final_evaluation_examples": 2000,
}

TRIALS = {
    "start": Trial(builds_on=None, settings=BASE),
    "muon": Trial(builds_on="start", settings={"optimizer": "muon", "learning_rate": 5e-3}),
    "lamb": Trial(builds_on="start", settings={"optimizer": "lamb", "learning_rate": 1e-2}),
    "adamw-informed": Trial(builds_on="start", settings={"initialization": "informed"}),
    "adamw-informed-4e-3": Trial(builds_on="adamw-informed", settings={"learning_rate": 4e-3}),
    "informed": Trial(builds_on="muon", settings={"initialization": "informed"}),
    "informed-3e-3": Trial(builds_on="informed", settings={"learning_rate": 3e-3}),
    "informed-7e-3": Trial(builds_on="informed", settings={"learning_rate": 7e-3}),
    "masks": Trial(
        builds_on="informed", settings={"mask_fraction": 0.3, "final_mask_fraction": 0.15}
    ),
    "masks-40": Trial(builds_on="informed", settings={"mask_fraction": 0.4}),
    "masks-50-15": Trial(
        builds_on="informed", settings={"mask_fraction": 0.5, "final_mask_fraction": 0.15}
    ),
    "published-masks": Trial(
        builds_on="muon", settings={"mask_fraction": 0.3, "final_mask_fraction": 0.15}
    ),
    "flat-then-down": Trial(
        builds_on="masks", settings={"schedule": "warmup_stable_decay", "decay_fraction": 0.5}
    ),
    "cosine": Trial(builds_on="masks", settings={"schedule": "cosine"}),
    "short-warm-up": Trial(builds_on="masks", settings={"warmup_fraction": 0.03}),
    "half-batch": Trial(
        builds_on="masks",
        settings={"global_batch_size": 16, "micro_batch_size": 16, "learning_rate": 3.5e-3},
        steps_factor=2,
    ),
    "double-batch": Trial(
        builds_on="masks",
        settings={"global_batch_size": 64, "learning_rate": 7e-3},
        steps_factor=0.5,
    ),
    "weight-decay": Trial(builds_on="masks", settings={"weight_decay": 0.1}),
    "averaged": Trial(builds_on="masks", settings={"averaging_decay": 0.99}),
    "quick-second-moment": Trial(builds_on="masks", settings={"betas": (0.9, 0.98)}),
    "dropout": Trial(builds_on="masks", settings={"dropout": 0.1}),
    "whole-words": Trial(builds_on="masks", settings={}, examples={"whole_words": True}),
    "without-pairs": Trial(builds_on="masks", settings={}, examples={"objective": "mlm"}),
}


def resolved(name: str) -> Trial:
    """A trial with everything that it inherits from those that it builds on."""
    trial = TRIALS[name]
    if trial.builds_on is None:
        return trial
    base = resolved(trial.builds_on)
    return replace(
        trial,
        settings={**base.settings, **trial.settings},
        examples={**base.examples, **trial.examples},
        steps_factor=base.steps_factor * trial.steps_factor,
    )


def run_trial(
    name: str, steps: int, runtime: RuntimeSettings, inputs: tuple[Artifact, Artifact]
) -> dict[str, float]:
    """Train one trial on one CPU; returns its final figures."""
    trial = resolved(name)
    num_steps = round(steps * trial.steps_factor)
    settings = PretrainingSettings(
        **trial.settings,
        num_steps=num_steps,
        evaluate_every_steps=max(1, num_steps // 4),
        checkpoint_every_steps=num_steps,
    )
    context = runtime.context(tags={"recipe": "recipe_search", "trial": name})
    ranks = Ranks(workers=1, cpus_per_worker=1, device="cpu")
    encoder = build_encoder(settings, *inputs, replace(context, ranks=ranks))
    return {
        key: value for key, value in encoder.statistics.items() if isinstance(value, int | float)
    }


def table(figures: Mapping[str, Mapping[str, float]], steps: int) -> list[str]:
    """One row per trial: what it changes, and its figures."""
    lines = [
        f"BERT-tiny, {steps} steps of 32 examples, or as many examples in other batch sizes.",
        "",
        "| trial | builds on | changes | masked tokens | content words | loss | NSP |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in figures.items():
        trial = TRIALS[name]
        changed = {**trial.settings, **trial.examples} if trial.builds_on else {}
        changes = ", ".join(f"{key}={value}" for key, value in changed.items())
        nsp = found.get("eval/nsp_accuracy")
        lines.append(
            f"| {name} | {trial.builds_on or ''} | {changes} | {found['eval/mlm_accuracy']:.1%} | "
            f"{found.get('eval/mlm_accuracy/content', float('nan')):.1%} | "
            f"{found['eval/mlm_loss']:.3f} | {'' if nsp is None else f'{nsp:.1%}'} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(TRIALS))
    parser.add_argument("--steps", type=int, default=750)
    parser.add_argument("--home", default="", help="folder of the store and the tracker")
    parser.add_argument("--at-once", type=int, help="trials at a time; by default one per CPU")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - TRIALS.keys():
        parser.error(f"--only must name trials of {', '.join(TRIALS)}, found {', '.join(unknown)}")
    runtime = RuntimeSettings(home=arguments.home)
    context = runtime.context(tags={"recipe": "recipe_search"})
    demo = read_recipe(EndToEndRecipe, "demo")
    corpus = build_corpus(demo.corpus, context)
    vocabulary = build_vocabulary(demo.vocabulary, corpus, context)
    inputs = {}
    for name in arguments.only:
        changed = demo.examples.model_copy(update=dict(resolved(name).examples))
        inputs[name] = (build_examples(changed, corpus, vocabulary, context), vocabulary)
    connect()
    at_once = arguments.at_once or int(sum(node.get("CPU", 0) for node in nodes()))
    # The trial's own worker holds the CPU.
    task = ray.remote(num_cpus=0, max_calls=1)(run_trial)
    waiting, running, figures = list(arguments.only), {}, {}
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            running[task.remote(name, arguments.steps, runtime, inputs[name])] = name
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        name = running.pop(done)
        figures[name] = ray.get(done)
        print(f"{name}: {figures[name]['eval/mlm_accuracy']:.1%}", flush=True)
    disconnect()
    ordered = {name: figures[name] for name in arguments.only}
    report(
        "recipe_search",
        "Which recipe is best for the demo's text",
        table(ordered, arguments.steps),
    )


if __name__ == "__main__":
    main()
