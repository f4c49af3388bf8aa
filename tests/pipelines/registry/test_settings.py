"""Names and aliases that could not work are refused with the recipe, before anything is built."""

import pytest

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("alias=latest", "keeps `latest` and numbers"),
        ("alias=Latest", "keeps `latest` and numbers"),
        ("alias=v1", "keeps `latest` and numbers"),
        ("candidate_alias=V12", "keeps `latest` and numbers"),
        ("alias='3'", "keeps `latest` and numbers"),  # `--from 3` would mean the version
        ("alias=best.one", "must match pattern"),  # MLflow takes no dot in an alias
        ("alias=candidate", "alias and candidate_alias must differ"),
        ("encoder_name=bertsmith-classifier", "encoder_name and classifier_name must differ"),
    ],
)
def test_what_mlflow_would_refuse_is_refused_at_once(override: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_recipe("demo", [f"registration.{override}"])


def test_usual_names_are_taken() -> None:
    overrides = ["registration.alias=production-v2", "registration.candidate_alias=new_one"]
    assert read_recipe("demo", overrides).registration.alias == "production-v2"
