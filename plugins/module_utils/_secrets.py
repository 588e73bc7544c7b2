# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Secrets in what is to be handed to others: found by the names that they go by, and replaced wherever and however they are written."""

from __future__ import annotations

import base64
import json
import re
import shlex
import typing as t
from urllib.parse import quote, quote_plus

from ansible_collections.sparkstack.inference.plugins.module_utils._logline import mask

HIDDEN = "***"
FOLDER = "/var/lib/sparkstack/secrets"
"""The folder on a node, root's only, with a file of secret variables for each container that has any, named after it."""

# The one rule, for what a recipe is refused for and for what is hidden. Not TOKENIZERS_PARALLELISM, max_tokens, KEYBOARD.
_NAME = re.compile(
    r"TOKEN(?![A-Z])|SECRET|PASS(?:WORD|WD|PHRASE)|_PASS$|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|(?:^|_)KEY$|COOKIE|(?:^|_)AUTH$",
    re.IGNORECASE,
)
_TRIVIAL = frozenset(["true", "false", "none", "null", "auto", "empty", "dummy", "default", "disabled", "enabled"])
SHORTEST = 4
"""Characters of a value that is searched for: shorter ones can't be told from other text."""
_SHORTEST_CODED = 8
# What the patterns of _logline.mask hold, so that the other lines, most of a log, are not looked through by them.
_SUSPICIOUS = re.compile(r"key|token|password|secret|bearer|hf_|nvapi-|sk-", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable's or an option's name says that its value is a secret."""
    return bool(_NAME.search(name.replace("-", "_")))


def telling(value: str) -> bool:
    """Whether a value can be searched for: it is long enough, and no word or number that means something else."""
    return len(value) >= SHORTEST and value.lower() not in _TRIVIAL and not (value.isdigit() and len(value) < _SHORTEST_CODED)


def of_environment(entries: t.Iterable[str]) -> t.List[str]:
    """The secret values of C(NAME=value) entries."""
    pairs = [entry.partition("=") for entry in entries]
    return [value for name, _equals, value in pairs if value and is_secret(name)]


def of_command(words: t.Sequence[str]) -> t.List[str]:
    """The secret values of a command line: C(--api-key VALUE), C(--api-key=VALUE), C(HF_TOKEN=VALUE), also in a shell's C(-c) text."""
    found = _of_words([word for word in words if " " not in word.strip()])
    for word in words:
        if " " in word.strip():
            found += _of_words(split(word))
    return [value for value in found if value]


def split(command: str) -> t.List[str]:
    """The words of a command line as a shell reads it; of one whose quotes don't match, what stands between blanks."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _of_words(words: t.Sequence[str]) -> t.List[str]:
    found: t.List[str] = []
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not re.match(r"^-*[\w-]+$", name) or not is_secret(name.lstrip("-")):
            continue
        if equals:
            found.append(value)
        elif word.startswith("-"):
            for following in words[index + 1 :]:
                # SGLang and vLLM both take several keys after one option.
                if following.startswith("-"):
                    break
                found.append(following)
    return found


def of_file(text: str) -> t.List[str]:
    """The values of a file of variables as a shell reads it, all of which are secrets."""
    found = []
    for line in text.splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = [line]
        found += [word.partition("=")[2] for word in words if "=" in word]
    return [value for value in found if value]


def forms(value: str) -> t.Set[str]:
    """The value as it can be written: plain, in JSON, in a URL, in Python's or a shell's quotes, in hexadecimal, in base64 at any place."""
    coded = value.encode("utf-8", "surrogateescape")
    once = json.dumps(value)[1:-1]
    found = {value, once, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(once)[1:-1], repr(value)[1:-1], shlex.quote(value).strip("'")}
    for safe in ("", "/"):
        text = quote(coded, safe=safe)
        found |= {text, re.sub("%..", lambda match: match.group(0).lower(), text)}
    found |= {quote_plus(coded), coded.hex(), coded.hex().upper()}
    for lead in range(3):
        # Of a value amid others, the characters that hold bits of its neighbours are not known.
        whole = base64.b64encode(b"\0" * lead + coded).decode()
        piece = whole[(lead * 8 + 5) // 6 : (lead + len(coded)) * 8 // 6]
        if len(piece) >= _SHORTEST_CODED:
            found |= {piece, piece.replace("+", "-").replace("/", "_")}
    return {form for form in found if len(form) >= min(len(value), _SHORTEST_CODED)}


class Scrubber:
    """Replaces secrets in texts."""

    def __init__(self, secrets: t.Iterable[str]) -> None:
        """
        :param secrets: values to replace wherever they stand; what is too short to be told from other text is passed over.
        """
        every = {form for secret in set(secrets) if telling(secret) for form in forms(secret)}
        self._forms = sorted(every, key=lambda form: (-len(form), form))

    def text(self, text: str) -> str:
        """The text without them, and without what looks like a key or a token by its surroundings."""
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return "".join(mask(line) if _SUSPICIOUS.search(line) else line for line in text.splitlines(True))

    def data(self, data: bytes) -> bytes:
        """The same for the bytes of a file, whatever they are."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def environment(entries: t.Iterable[str]) -> t.List[str]:
    """C(NAME=value) entries with secret values replaced."""
    return [f"{entry.partition('=')[0]}={HIDDEN}" if is_secret(entry.partition("=")[0]) and "=" in entry else entry for entry in entries]


def variables(value: t.Any, name: str = "") -> t.Any:
    """Plain data with the values of secret-looking keys replaced, at any depth."""
    if isinstance(value, t.Mapping):
        return {str(key): variables(inner, str(key)) for key, inner in value.items()}
    if name and is_secret(name) and value not in (None, "", False, True):
        return HIDDEN
    if isinstance(value, (list, tuple)):
        return [variables(inner) for inner in value]
    return value


def of_variables(value: t.Any, name: str = "") -> t.List[str]:
    """The texts that stand behind secret-looking keys in plain data, at any depth."""
    if isinstance(value, t.Mapping):
        return [found for key, inner in value.items() for found in of_variables(inner, str(key) if not (name and is_secret(name)) else name)]
    if isinstance(value, (list, tuple)):
        return [found for inner in value for found in of_variables(inner, name)]
    return [str(value)] if name and is_secret(name) and isinstance(value, (str, int)) and value not in ("", True, False) else []
