"""MediaWiki dumps: articles as prose, divided without loss."""

import pytest

from pipelines.io.text import Tally
from pipelines.stages.corpus.settings import (
    MediaWiki,
)
from pipelines.stages.corpus.sources.inputs import Span, read_span, resolve


def read(source, spans: int = 1) -> tuple[list[tuple[str, str]], Tally]:
    """(label, text) of every document, read in so many spans."""
    tally = Tally()
    found = []
    for file in resolve(source).files:
        edges = [file.num_bytes * index // spans for index in range(spans)]
        for begin, end in zip(edges, [*edges[1:], None], strict=True):
            span = Span(source=0, file=file, begin=begin, end=end)
            found += [(each.label, each.text) for each in read_span(source, span, tally)]
    return found, tally


def page(title: str, text: str, namespace: int = 0, redirect: bool = False) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n"
        + ('    <redirect title="Other" />\n' if redirect else "")
        + f"    <revision><text>{escaped}</text></revision>\n  </page>\n"
    )


ARTICLE = """{{Infobox city|name=Town|population={{formatnum:1234}}}}
'''Town''' is a ''place'' ([[Greek language|Greek]]: {{lang|el|Πόλη}}) in [[Land]].<ref>A source, p. 3.</ref>

[[File:Town.jpg|thumb|A view of [[Town]] at night]]
== History ==
It was founded in 1234.<ref name="a" /> {{citation needed}}
{| class="wikitable"
| cell {| inner |}
|}
* One item with [http://example.org a link]
[[Category:Towns]]
"""  # noqa: E501 (as such pages are written)


@pytest.mark.parametrize("spans", [1, 2, 5])
def test_a_dump_gives_its_articles_as_prose(tmp_path, spans):
    path = tmp_path / "dump.xml"
    path.write_text(
        "<mediawiki>\n  <siteinfo></siteinfo>\n"
        + page("Town", ARTICLE)
        + page("Old", "#REDIRECT [[Town]]", redirect=True)
        + page("Talk:Town", "Chatter.", namespace=1)
        + page("Second", "Another '''article''' &amp; its text.")
        + "</mediawiki>\n"
    )
    found, tally = read(MediaWiki(paths=(str(path),)), spans)
    assert [text for _, text in found] == [
        "Town is a place (Greek: ) in Land.\nHistory\nIt was founded in 1234.\n"
        "One item with a link",
        "Another article & its text.",
    ]
    assert tally.to_json()["dropped"] == {"pages of other name spaces": 1, "redirects": 1}


def test_a_dump_that_breaks_off_counts_the_page_it_lost(tmp_path):
    path = tmp_path / "dump.xml"
    path.write_text("<mediawiki>" + page("A", "Text of A.") + page("B", "Text of B.")[:-20])
    found, tally = read(MediaWiki(paths=(str(path),)))
    assert [text for _, text in found] == ["Text of A."]
    assert tally.to_json()["dropped"] == {"pages that are not whole": 1}
