"""A stage is declared once: what is written by hand elsewhere is held against the declaration."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import flows.chain
from flows.cli.app import DONE, run
from pipelines.config.settings import Settings
from pipelines.recipes.models import EndToEndRecipe, narrowest_recipe
from pipelines.stage import Stage
from pipelines.stages import CHAIN, asked_for, with_what_they_need

ROOT = Path(__file__).parents[2]
each_stage = pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)


def test_the_chain_holds_every_folder_of_the_stages_in_an_order_that_can_be_built() -> None:
    folders = {path.parent.name for path in (ROOT / "pipelines" / "stages").glob("*/__init__.py")}
    assert {stage.name for stage in CHAIN} == folders
    seen: set[str] = set()
    for stage in CHAIN:
        assert seen >= set(stage.needs), f"{stage.name} comes before what it needs"
        seen.add(stage.name)


def test_no_two_stages_share_a_kind_a_command_or_a_title() -> None:
    for attribute in ("name", "kind", "command", "title"):
        values = [getattr(stage, attribute) for stage in CHAIN]
        assert len(set(values)) == len(values), attribute


@each_stage
def test_the_builder_takes_settings_what_it_needs_and_the_context(stage: Stage) -> None:
    parameters = list(inspect.signature(stage.builder()).parameters)
    expected = [*(["settings"] if stage.section else []), *stage.needs, "context"]
    assert len([name for name in parameters if name != "initialization"]) == len(expected)
    assert parameters[len(expected) - 1] == "context"


@each_stage
def test_the_recipe_has_a_section_of_the_stages_own_settings(stage: Stage) -> None:
    if not stage.section:
        return
    field = EndToEndRecipe.model_fields[stage.section]
    settings = import_module(f"pipelines.stages.{stage.name}.settings")
    assert issubclass(field.annotation, Settings)
    assert getattr(settings, field.annotation.__name__) is field.annotation


@each_stage
def test_the_recipe_of_a_stage_holds_what_it_needs_and_no_later_stage(stage: Stage) -> None:
    needed = [each.section for each in with_what_they_need([stage]) if each.section]
    recipe_type = narrowest_recipe(needed)
    later = CHAIN[CHAIN.index(stage) + 2 :]  # the dataset and the fine-tuning share one
    sections = set(recipe_type.model_fields)
    assert sections >= set(needed)
    assert not sections & {each.section for each in later if each.section}


@each_stage
def test_every_stage_has_a_flow_a_command_and_a_deployment(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage_flow = getattr(flows.chain, stage.command)
    assert stage_flow is flows.chain.flow_of(stage.command)
    assert stage_flow.name == stage.command
    assert run([stage.command, "--help"]) == DONE
    assert stage.example in " ".join(capsys.readouterr().out.split())
    declared = yaml.safe_load((ROOT / "infra" / "prefect.yaml").read_text())["deployments"]
    deployment = next(each for each in declared if each["name"] == stage.command)
    assert deployment["entrypoint"] == f"flows.chain.{stage.command}"
    assert deployment["description"] == stage.purpose


def test_a_module_without_that_flow_says_so() -> None:
    with pytest.raises(AttributeError, match="no flow 'nonsense'"):
        _ = flows.chain.nonsense


def test_what_the_recipe_leaves_out_takes_what_needs_it_along() -> None:
    without = EndToEndRecipe.model_validate({"dataset": {"source": {"kind": "none"}}})
    names = [stage.name for stage in asked_for(without, CHAIN)]
    assert names == ["corpus", "vocabulary", "examples", "pretraining"]
