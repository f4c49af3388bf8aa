"""Run one flow for a person at a terminal: recipe first, progress while it runs, summary last."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from flows.cli.choice import Choice
from flows.environment import home_folder, prepare_flows

if TYPE_CHECKING:
    from pipelines.core.recipes import CorpusRecipe

# command -> module and name of its flow, and the recipe that the flow takes
_FLOWS = {
    "run": ("flows.end_to_end", "end_to_end", "EndToEndRecipe"),
    "corpus": ("flows.corpus", "corpus", "CorpusRecipe"),
    "vocabulary": ("flows.vocabulary", "vocabulary", "VocabularyRecipe"),
    "examples": ("flows.examples", "examples", "ExamplesRecipe"),
    "pretrain": ("flows.pretrain", "pretrain", "PretrainingRecipe"),
    "finetune": ("flows.finetune", "finetune", "FinetuningRecipe"),
    "evaluate": ("flows.evaluate", "evaluate", "FinetuningRecipe"),
}


def execute(command: str, choice: Choice, *, show_recipe: bool) -> None:
    """Run the flow of `command` with the recipe that `choice` describes."""
    module, name, recipe_name = _FLOWS[command]
    surroundings = prepare_flows(home_folder(choice.home))

    from pipelines.core import recipes

    recipe = recipes.read_recipe(
        getattr(recipes, recipe_name), choice.source, choice.all_overrides()
    )
    print(recipe.to_yaml() if show_recipe else short_form(recipe), flush=True)
    flow = getattr(import_module(module), name)

    from flows.reporting.summary import print_summary
    from flows.reporting.terminal import progress_on_terminal
    from pipelines.core.cluster import disconnect

    if surroundings.local_api is not None:
        surroundings.local_api.wait()
    try:
        with progress_on_terminal():
            story = flow(recipe)
    finally:
        disconnect()
    if surroundings.local_api is not None:
        story.flow_run_url = ""  # its API ends with this process and has no pages
    print_summary(story, os.environ.get("MLFLOW_TRACKING_URI", ""))


def short_form(recipe: "CorpusRecipe") -> str:
    """The recipe's name and what it sets other than the defaults, a line for each section."""
    import yaml

    lines = [f"Recipe {recipe.name} (bertsmith recipes show prints every value)"]
    for section, values in recipe.model_dump(mode="json", exclude_defaults=True).items():
        if isinstance(values, dict) and values:
            text = yaml.safe_dump(values, default_flow_style=True, width=10_000, sort_keys=False)
            lines.append(f"  {section:<12} {text.strip()[1:-1]}")
    return "\n".join(lines)
