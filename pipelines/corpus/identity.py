"""Which document is which: content hashes and the ids made of them."""

import hashlib
from typing import Final

GROUP_DIGITS: Final = 32  # of an id: the document; what follows counts its pieces
_WHITE_SPACE: Final = b" \n"  # all that a mended text has


def content_hash(text: str) -> str:
    """32 hexadecimal digits that texts share which differ in case and white space only."""
    plain = text.lower().encode("utf-8", "surrogatepass").translate(None, _WHITE_SPACE)
    return hashlib.blake2b(plain, digest_size=16).hexdigest()


def document_id(content: str, group: str | None, piece: int) -> str:
    """Id of a document, or of one piece of it; equal inputs give equal ids in any run."""
    return content if group is None else f"{group}.{piece:06d}"


def group_of(identifier: str) -> str:
    """What the pieces of one document share."""
    return identifier[:GROUP_DIGITS]
