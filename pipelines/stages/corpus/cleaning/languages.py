"""Which language a text is in, by an offline model of 97 languages (`py3langid`)."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from pipelines.core.errors import UserError

_CHARACTERS: Final = 1000  # of a document's beginning; more do not change the answer


def language_of(text: str) -> str:
    """ISO 639-1 code of the most probable language."""
    import py3langid  # reads its model: workers that need it not should not wait for it

    code: str = py3langid.classify(text[:_CHARACTERS])[0]
    return code


def count_languages(texts: Iterable[str]) -> dict[str, int]:
    """How many of the texts are in each language, the most frequent first."""
    return dict(Counter(map(language_of, texts)).most_common())


def check_codes(codes: Iterable[str]) -> None:
    """Raise UserError for a code that the model does not know."""
    wanted = tuple(codes)
    if not wanted:
        return
    import py3langid

    known = {code for code, _ in py3langid.rank("text")}
    for code in wanted:
        if code not in known:
            raise UserError(
                f"languages must be ISO 639-1 codes that the detector knows, found {code!r}; "
                f"choose among {', '.join(sorted(known))}"
            )
