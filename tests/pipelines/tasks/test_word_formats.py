"""Words and their tags in the formats people have: CoNLL's columns, lines of JSON."""

from pathlib import Path

import pytest

from pipelines.config.errors import UserError
from tests.pipelines.tasks.labelled_lines import items, written

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_columns_of_conll_in_any_number_parted_by_spaces_or_tabs(tmp_path: Path) -> None:
    path = written(tmp_path / "eng.testa", CONLL_2003)
    assert items(path, "tagging") == [
        {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"words": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    assert items(path, "tagging", label_column="2")[0]["tags"] == ["NNP", "VBZ"]
    tabs = "# text = New York\n1\tNew York\tX\tB-LOC\n2\t#\tX\tO\n\n\n3\t!\tX\tO\n"
    path = written(tmp_path / "a.conll", tabs)
    assert items(path, "tagging", text_column="2") == [
        {"words": ["New York", "#"], "tags": ["B-LOC", "O"]},
        {"words": ["!"], "tags": ["O"]},
    ]


def test_a_word_that_begins_like_a_comment_is_one_where_its_tag_is(tmp_path: Path) -> None:
    lines = "# sent_id = 1\n# O\n1 O\nstreet B-X\n\n# note\n# = O\n# B-X\n\n# 2\nx O\n"
    path = written(tmp_path / "a.conll", lines)
    assert [(item["words"], item["tags"]) for item in items(path, "tagging")] == [
        (["#", "1", "street"], ["O", "O", "B-X"]), (["#"], ["B-X"]), (["x"], ["O"]),
    ]  # fmt: skip
    tabs = written(tmp_path / "b.conll", "# text = # x\n# x\tO\ny\tO\n\n# newdoc\nz\tO\n")
    assert [item["words"] for item in items(tabs, "tagging")] == [["# x", "y"], ["z"]]


def test_a_word_of_conll_without_a_tag_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "one\tO\ntwo\t\n")
    with pytest.raises(UserError, match=r"line 2 of .* like the others .found no tag for its word"):
        items(path, "tagging")


def test_a_line_of_conll_with_another_number_of_columns_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "one X O\ntwo O\n")
    with pytest.raises(UserError, match=r"line 2 of .*found 2 columns, not 3: 'two O'"):
        items(path, "tagging")
    with pytest.raises(UserError, match=r"by their number from 1 to 2, found 'ner'"):
        items(written(tmp_path / "b.conll", "one O\n"), "tagging", label_column="ner")


def test_words_and_tags_of_lines_of_json(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["O", "B-V"]}\n')
    assert items(path, "tagging") == [{"words": ["a", "b"], "tags": ["O", "B-V"]}]
    path = written(tmp_path / "c.jsonl", '{"tokens": ["a", "b"], "ner_tags": [0, 3]}\n')
    with pytest.raises(UserError, match=r"have the names of its tags, .*the number 0 in line"):
        items(path, "tagging")
    path = written(tmp_path / "d.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["O", null]}\n')
    with pytest.raises(UserError, match="have a tag for every word, found none for 'b' in line 1"):
        items(path, "tagging")
    path = written(tmp_path / "b.jsonl", '{"tokens": ["a", "b"], "ner_tags": [0]}\n')
    with pytest.raises(UserError, match="have a tag for every word, found 1 for 2 in line 1"):
        items(path, "tagging")


def test_ranges_and_empty_nodes_of_conll_u_are_no_words(tmp_path: Path) -> None:
    def line(number: str, word: str, tag: str) -> str:
        return "\t".join([number, word, "_", tag, *["_"] * 6])

    sentence = [line("1-2", "don't", "_"), line("1", "do", "AUX"), line("2", "n't", "PART"),
                line("2.1", "eat", "VERB")]  # fmt: skip
    path = written(tmp_path / "a.conllu", "\n".join(["# sent_id = 1", *sentence, ""]))
    assert items(path, "tagging", text_column="2", label_column="4") == [
        {"words": ["do", "n't"], "tags": ["AUX", "PART"]}
    ]
    ranges = written(tmp_path / "b.conll", "3-4 O\nyears B-X\n")  # a score is a word
    assert items(ranges, "tagging")[0]["words"] == ["3-4", "years"]


def test_half_an_emoji_in_a_list_stands_for_no_character(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"tokens": ["ok \\ud83d", "b"], "tags": ["O", "B"]}')
    assert items(path, "tagging")[0]["words"] == ["ok \ufffd", "b"]
