"""Personal data and secrets in text, found by rule and replaced by a name: `<email>`, `<ip_address>` and so on.

    email        an address of letters, digits and . _ % + ' -, a domain and a top-level domain; no logo@2x.png
    ip_address   IPv4 and IPv6 addresses that are global, as for FineWeb (datatrove's PIIFormatter): private ones,
                 loopback and those of documentation stay; of IPv6, 2000::/3, which is all that is assigned
    secret_key   keys that can be told by their form, as of gitleaks' rules (https://github.com/gitleaks/gitleaks,
                 config/gitleaks.toml): private keys in PEM, JSON web tokens, keys of AWS, GitHub, GitLab, Slack,
                 OpenAI, Anthropic, Google, Stripe, Hugging Face, npm, PyPI and SendGrid
    phone        a number in international form (E.164): +, a country code, 8 to 15 digits with usual separators

A text is searched by a kind only if a scan in linear time (RE2, many texts at once) finds the kind's mark. No pattern
reads a run of characters more than a few times, so that no text takes time that grows faster than its length.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence

LOCAL_PART = 64  # characters before the @, at most (RFC 5321)
KEY = r"[A-Za-z0-9_-]"

EMAIL = re.compile(
    r"@(?<=[A-Za-z0-9_%+'-]@)(?:[A-Za-z0-9-]{1,63}+\.)+(?!(?:png|jpe?g|gif|svg|webp)\b)"
    r"[A-Za-z](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])",
    re.ASCII,
)
"""From the @ on: a pattern that begins with the local part would begin at each letter."""
LOCAL = re.compile(r"[A-Za-z0-9_%+-][A-Za-z0-9._%+'-]*\Z", re.ASCII)

IP_ADDRESS = re.compile(
    r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.\w)"
    r"|(?<![\w:.])[23][0-9A-Fa-f]{3}:(?:[0-9A-Fa-f]{0,4}:){1,6}[0-9A-Fa-f]{0,4}(?![\w:])",
    re.ASCII,
)

# `body` is taken whole, as by (...)*+, which matches a group wrongly in Python before 3.11.5 (gh-106052)
SECRET_KEY = re.compile(
    rf"""
    -----BEGIN[ ][A-Z0-9 ]{{0,40}}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----(?=(?P<body>(?:[^-]|-(?!----))*))(?P=body)
        -----END[ ][A-Z0-9 ]{{0,40}}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----
    | (?<!\w)(?:
        (?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{{16}}(?!\w)
      | gh[pousr]_[A-Za-z0-9]{{36,255}} | github_pat_\w{{82}} | glpat-{KEY}{{20,255}}
      | AIza{KEY}{{35}}(?!{KEY}) | [rs]k_live_[A-Za-z0-9]{{10,99}} | hf_[A-Za-z]{{34}}(?!\w)
      | npm_[A-Za-z0-9]{{36}}(?!\w) | SG\.{KEY}{{22}}\.{KEY}{{43}} )
    | (?<!{KEY})(?:
        sk-(?=.{{20,74}}T3BlbkFJ){KEY}{{48,170}}+ | sk-ant-[a-z]{{3,8}}[0-9]{{2}}-{KEY}{{80,120}}
      | xox[abeoprs]-[A-Za-z0-9-]{{10,250}} | pypi-AgEIcHlwaS5vcmc{KEY}{{50,255}}
      | eyJ{KEY}{{14,}}+\.eyJ{KEY}{{14,}}+\.{KEY}{{10,}}+ )
    | (?<=hooks\.slack\.com/services/)[A-Za-z0-9+/]{{40,60}}
    | (?<![A-Za-z0-9])(?P<name>aws_?secret_?(?:access_?)?key["']?[ ]{{0,4}}[:=]>?[ ]{{0,4}}["']?
        |(?:AWS_)?SECRET_ACCESS_KEY["']?[ ]{{0,4}}[:=]>?[ ]{{0,4}}["']?)[A-Za-z0-9/+]{{40}}(?![A-Za-z0-9/+=])
    """,
    re.ASCII | re.VERBOSE,
)

PHONE = re.compile(
    r"\+(?<![\w+]\+)(?![0-9]+\.[0-9]*+(?!\.[0-9]))[1-9](?:[ \u00a0()./\u2010-\u2013-]{0,3}[0-9]){7,14}(?![0-9])",
    re.ASCII,
)
"""No decimal number with a sign: +1.23456789."""

MARKS = {
    "secret_key": r"-----BEGIN|A[A3][A-Z][A-Z0-9]{17}|A[BCKS][CI]A[A-Z0-9]{16}|gh[pousr]_|github_pat_|glpat-|AIza|"
    r"[rs]k_live_|hf_[A-Za-z]{34}|npm_|SG\.|sk-|xox[abeoprs]-|pypi-Ag|eyJ|hooks\.slack\.com|"
    r"(?i:secret_?(?:access_?)?key)",
    "email": "@[A-Za-z0-9]",
    "ip_address": r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[23][0-9A-Fa-f]{3}:[0-9A-Fa-f]{0,4}:",
    "phone": r"\+[1-9]",
}
"""Signs of data of a kind in a text, as an expression of RE2; the kinds in the order in which they are masked."""


def masked(kinds: Collection[str], texts: Sequence[str]) -> list[tuple[str, Counter[str]]]:
    """Return for each text what it is with the data of some kinds masked, and how often each kind was found."""
    import pyarrow
    import pyarrow.compute as pc

    results = list(texts)
    counts: list[Counter[str]] = [Counter() for _ in texts]
    column = pyarrow.array(texts, pyarrow.large_string())
    for kind, mark in MARKS.items():
        if kind in kinds:
            for at in pc.indices_nonzero(pc.match_substring_regex(column, mark)).to_pylist():
                results[at], number = FIND[kind](results[at])
                if number:
                    counts[at][kind] = number
    return list(zip(results, counts, strict=True))


def _emails(text: str) -> tuple[str, int]:
    pieces, end = [], 0
    for match in EMAIL.finditer(text):
        begin = match.start()
        local = LOCAL.search(text, max(end, begin - LOCAL_PART), begin)
        if local is not None:
            pieces.append(text[end : local.start()])
            end = match.end()
    return "<email>".join([*pieces, text[end:]]), len(pieces)


def _ip_addresses(text: str) -> tuple[str, int]:
    number = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal number
        try:
            is_global = ipaddress.ip_address(match[0]).is_global
        except ValueError:
            return match[0]
        number += is_global
        return "<ip_address>" if is_global else match[0]

    return IP_ADDRESS.sub(replacement, text), number


FIND: dict[str, Callable[[str], tuple[str, int]]] = {
    "secret_key": lambda text: SECRET_KEY.subn(lambda match: f"{match['name'] or ''}<secret_key>", text),
    "email": _emails,
    "ip_address": _ip_addresses,
    "phone": lambda text: PHONE.subn("<phone>", text),
}
