"""What Prefect draws of a recipe: a field for everything, tabs where there are several kinds."""

from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError

from flows.end_to_end import end_to_end
from flows.local.served import closed_parameters
from pipelines.recipes.recipe import Recipe


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    return end_to_end.parameters.model_dump()["definitions"]


def test_sources_and_labelled_data_are_tabs_with_fields(definitions: dict[str, Any]) -> None:
    sources = definitions["CorpusSettings"]["properties"]["sources"]["items"]
    labels = definitions["DatasetSettings"]["properties"]["source"]
    for tabs in (sources, labels):
        assert "oneOf" not in tabs
        assert "discriminator" not in tabs
        for tab in tabs["anyOf"]:
            model = definitions[tab["$ref"].rpartition("/")[2]]
            assert model["title"]
            kind = model["properties"]["kind"]
            assert kind["default"] in kind.get("enum", [kind.get("const")])
    names = {tab["$ref"].rpartition("/")[2] for tab in labels["anyOf"]}
    assert names == {"CorpusSourceLabels", "LabelledFile", "LabelledDataset", "NoLabels"}


def test_nothing_in_the_form_is_an_empty_box(definitions: dict[str, Any]) -> None:
    assert "oneOf" not in str(definitions)
    for name, model in definitions.items():
        for field, schema in model.get("properties", {}).items():
            drawn = {"type", "$ref", "anyOf", "allOf", "enum", "const"} & schema.keys()
            assert drawn, f"{name}.{field} has nothing that a form could draw: {schema}"


def test_the_server_refuses_an_unknown_parameter_section_and_stage(prefect_api: str) -> None:
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            flow_id=client.create_flow(end_to_end),
            name="a form",
            parameter_openapi_schema=end_to_end.parameters.model_dump_for_openapi(),
            enforce_parameter_schema=True,
        )
        client.update_deployment(deployment, closed_parameters(end_to_end))
        unknown = ({"recipee": {}}, {"recipe": {"pretrainig": {}}}, {"until": "training"})
        for wrong in unknown:
            with pytest.raises(PrefectHTTPStatusError, match="409"):
                client.create_flow_run_from_deployment(deployment, parameters=wrong)


def test_a_mistake_in_a_tab_is_told_of_that_tab_alone() -> None:
    with pytest.raises(ValueError, match=r"dataset.source.labelled_file.pth") as error:
        Recipe.model_validate({"dataset": {"source": {"kind": "labelled_file", "pth": "x"}}})
    assert "no_labels" not in str(error.value).lower()
