"""Which version a name stands for, and that nothing in the registry is left out."""

from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.registry.find import KIND_TAG, VERIFIED_TAG, find_model, list_models, newest_of
from pipelines.tracking.tracker import Tracker


def registered(tracker: Tracker, tmp_path: Path, name: str, count: int, **aliases: int) -> None:
    """`count` versions of a model, each a folder whose name is its number."""
    client = tracker.client()
    client.create_registered_model(name)
    for number in range(1, count + 1):
        folder = tmp_path / "sources" / name / str(number)
        folder.mkdir(parents=True)
        client.create_model_version(name, source=str(folder))
    for alias, number in aliases.items():
        client.set_registered_model_alias(name, alias, str(number))


def version_of(tracker: Tracker, reference: str) -> int:
    return int(find_model(tracker.client(), reference).version)


def test_a_bare_name_is_its_champion_and_refused_without_one(
    tracker: Tracker, tmp_path: Path
) -> None:
    registered(tracker, tmp_path, "encoder", 3, champion=1, production=2, candidate=3)
    assert version_of(tracker, "encoder") == 1
    tracker.client().delete_registered_model_alias("encoder", "champion")
    with pytest.raises(UserError, match=r"encoder has no champion; name a version.*encoder/1"):
        find_model(tracker.client(), "encoder")
    with pytest.raises(UserError, match="the registry has no model 'nobody'"):
        find_model(tracker.client(), "nobody")


def test_models_beyond_the_first_page_are_found(tracker: Tracker, tmp_path: Path) -> None:
    client = tracker.client()
    for number in range(101):  # a page holds 100
        client.create_registered_model(f"a{number:03}")
    registered(tracker, tmp_path, "last", 1, champion=1)
    assert version_of(tracker, "last") == 1
    assert [(row.name, row.aliases) for row in list_models(tracker)] == [("last", ["champion"])]


def test_a_command_asks_a_champion_before_a_newer_version_and_never_an_unproved_one(
    tracker: Tracker, tmp_path: Path
) -> None:
    registered(tracker, tmp_path, "encoder", 3, candidate=3)
    client = tracker.client()
    for number in ("1", "2", "3"):
        client.set_model_version_tag("encoder", number, KIND_TAG, "encoder")
    assert newest_of(tracker, "encoder") is None
    for number in ("1", "2"):
        client.set_model_version_tag("encoder", number, VERIFIED_TAG, "true")
    assert newest_of(tracker, "encoder") == "models:/encoder/2"
    client.set_registered_model_alias("encoder", "champion", "1")  # a person went back
    assert newest_of(tracker, "encoder") == "models:/encoder/1"
    client.set_registered_model_alias("encoder", "shadow", "2")  # another choice is no champion
    assert newest_of(tracker, "encoder") == "models:/encoder/1"
