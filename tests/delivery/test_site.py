"""The site builds without a warning, without running notebooks, and leads to every page."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs._extension.environment import VARIABLES
from docs._extension.settings import sections
from tests.delivery.pages import DOCS

pytestmark = pytest.mark.slow

_LINK = re.compile(r'<a class="[^"]*internal[^"]*" href="([^"#]+\.html)')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs EXECUTE=off` does: broken links and orphans are warnings."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet",
        "-D", "nb_execution_mode=off", str(DOCS), str(folder),
    ]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def article(page: Path) -> str:
    """What a page says, without the bars beside it."""
    (text,) = re.findall(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    return text


def linked(page: Path) -> Iterator[Path]:
    for link in _LINK.findall(article(page)):
        yield (page.parent / link).resolve()


def test_every_page_is_two_clicks_from_the_front_page(site: Path) -> None:
    front = (site / "index.html").resolve()
    near = {front, *linked(front)}
    reached = near | {target for page in near for target in linked(page)}
    pages = {page.resolve() for page in site.rglob("*.html")}
    by_itself = {(site / name).resolve() for name in ("genindex.html", "search.html")}
    assert len(pages) > 50
    assert pages - by_itself - reached == set()


def test_reference_has_every_setting_command_and_variable(site: Path) -> None:
    settings = article(site / "generated" / "settings.html")
    for section in sections():
        for setting in section.settings:
            assert f'id="confval-{setting.path}"' in settings
    commands = article(site / "generated" / "command-line.html")
    assert 'id="cmdoption-bertsmith-run-set"' in commands
    variables = article(site / "generated" / "environment.html")
    assert all(f'id="envvar-{name}"' in variables for name in VARIABLES)
