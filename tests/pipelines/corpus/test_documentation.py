"""Docstrings of installed packages as documents."""

import ast
from collections import Counter

from pipelines.stages.corpus import extraction
from pipelines.stages.corpus.settings import InstalledDocumentation
from pipelines.stages.corpus.sources import Span

DOCSTRING = """Do a thing that takes
    two lines to say.

    Parameters
    ----------
    first : int
        The first one,
        explained.

    - an item
    - another item

    >>> do(1)
    2
    """


def test_prose_is_unwrapped_and_ornaments_and_code_left_out():
    assert extraction.paragraphs(DOCSTRING).split("\n") == [
        "Do a thing that takes two lines to say.",
        "Parameters",
        "first : int",
        "The first one, explained.",
        "- an item",
        "- another item",
        "2",
    ]


def test_docstrings_are_found_in_the_order_of_the_code_wherever_statements_nest():
    code = '''"""module"""
if True:
    class A:
        """class"""
        def f(self):
            """method"""
            def g():
                """inner"""
else:
    async def h():
        """async"""
try:
    pass
except ValueError:
    def k():
        """handler"""
def plain():
    return "not a docstring"
'''
    assert list(extraction._docstrings(ast.parse(code))) == [
        "module", "class", "method", "inner", "async", "handler",
    ]  # fmt: skip


def test_a_package_gives_files_up_to_its_share_and_documents_with_its_name():
    settings = InstalledDocumentation(packages=("numpy",), max_source_megabytes=0.3)
    files = extraction.source_files(settings)
    assert 0 < sum(file.num_bytes for file in files) <= 300_000
    assert files == extraction.source_files(settings)
    found = [
        document
        for file in files
        for document in extraction.read_docstrings(Span(source=0, file=file), Counter())
    ]
    assert len(found) > 20
    assert {document.label for document in found} == {"numpy"}
    assert not any("tests" in file.path.split("/") for file in files)
