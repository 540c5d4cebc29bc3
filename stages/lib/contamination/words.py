"""Words as GPT-3's contamination study counts them (arXiv 2005.14165, appendix C): lower case, without punctuation.

Characters other than letters, marks and digits are deleted, not replaced by spaces: `state-of-the-art` is one word.
Only dashes longer than a hyphen become spaces, since texts have them with and without spaces around them. Texts are
compared in the normal form NFKC. Words end at white space, so a text of a language that is written without spaces has
few words, and is rarely checked.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

HYPHENS = "-\u2010\u2011"

SEGMENT_CHARACTERS = 1 << 20
"""Characters that are split into words at once: each word is an object of 50 bytes or more."""


class _Kept(dict[int, int | None]):
    """Table for str.translate, filled as characters are met: None for a character that is deleted."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        if unicodedata.category(character) == "Pd" and character not in HYPHENS:
            self[code] = ord(" ")
            return self[code]
        kept = character.isspace() or unicodedata.category(character)[0] in "LMN"
        self[code] = code if kept else None
        return self[code]


_KEPT = _Kept()


def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    return unicodedata.normalize("NFKC", text).lower().translate(_KEPT).split()


def segments(text: str) -> Iterator[str]:
    """Cut a text into segments of about SEGMENT_CHARACTERS at white space, so that no word is cut."""
    begin = 0
    while begin < len(text):
        end = begin + SEGMENT_CHARACTERS
        while end < len(text) and not text[end].isspace():
            end += 1
        yield text[begin:end]
        begin = end
