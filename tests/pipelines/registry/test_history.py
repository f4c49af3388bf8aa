"""Whom an alias goes back to, from what is recorded of it."""

from pipelines.registry.person_choice import How, Move, before_it, is_taken_back


def moved(version: int, before: int | None, how: How = "comparison", alias: str = "champion"):
    return Move(
        at="2026-11-22T00:00:00+00:00", alias=alias, version=version, before=before, how=how,
        by="ann", reason="", fingerprint=f"f{version}",
        before_fingerprint="" if before is None else f"f{before}",
    )  # fmt: skip


def anyone(version: int) -> bool:
    return True


def test_it_goes_back_one_after_the_other() -> None:
    moves = [moved(1, None), moved(2, 1), moved(3, 2), moved(4, None, alias="challenger")]
    assert before_it(moves, "champion", 3, anyone) == 2
    moves.append(moved(2, 3, "rollback"))
    assert before_it(moves, "champion", 2, anyone) == 1
    moves.append(moved(1, 2, "rollback"))
    assert before_it(moves, "champion", 1, anyone) is None


def test_after_a_rollback_a_new_champion_goes_back_to_the_one_that_was_kept() -> None:
    moves = [moved(1, None), moved(2, 1), moved(1, 2, "rollback"), moved(3, 1)]
    assert before_it(moves, "champion", 3, anyone) == 1


def test_versions_that_were_deleted_are_passed_over() -> None:
    moves = [moved(1, None), moved(2, 1), moved(3, 2)]
    assert before_it(moves, "champion", 3, lambda version: version != 2) == 1


def test_an_alias_that_was_moved_without_a_record_goes_back_to_the_last_that_is() -> None:
    assert before_it([moved(1, None), moved(2, 1)], "champion", 9, anyone) == 2
    assert before_it([moved(2, 1)], "champion", 2, anyone) == 1  # the first was set by hand


def test_only_what_a_person_went_back_from_is_taken_back() -> None:
    moves = [moved(1, None), moved(2, 1)]
    assert not is_taken_back(moves, "champion", "f1")
    moves.append(moved(1, 2, "rollback"))
    assert is_taken_back(moves, "champion", "f2")
    assert not is_taken_back(moves, "blessed", "f2")
    assert not is_taken_back([*moves, moved(3, 1), moved(2, 3, "person")], "champion", "f2")
    assert is_taken_back([moved(2, None), moved(1, 2, "person")], "champion", "f2")


def test_going_back_to_a_newer_version_takes_the_older_one_back() -> None:
    moves = [moved(5, None), moved(3, 5, "person")]
    assert is_taken_back(moves, "champion", "f5")
    moves.append(moved(5, 3, "rollback"))
    assert is_taken_back(moves, "champion", "f3")
    assert not is_taken_back(moves, "champion", "f5")
