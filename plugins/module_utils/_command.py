# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The command line of a process as it can be shown to others: without its secrets. Pure: no I/O."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _logline, _secrets

LONGEST = 400
"""Characters that are shown of a command line."""
# Characters that are read: a class path can have megabytes.
_MOST = 40 * LONGEST
# What runs the text after -c, and what runs the text after -e.
_INTERPRETERS = {"c": re.compile(r"(?:python|bash|dash|zsh|ksh|sh)[0-9.]*"), "e": re.compile(r"(?:perl|ruby|node)[0-9.]*")}
# 'from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=46, pipe_handle=48)': every worker of an engine has that.
_HARMLESS = re.compile(r"from multiprocessing\.\w+ import \w+; ?\w+\([\w=, ]*\)")
_OPTION = re.compile(r"-{0,2}[A-Za-z_][\w.-]*")
# 'X-Api-Key: abc', 'Authorization: Basic dXNlcjpwdw=='
_HEADER = re.compile(r"(?i)^(\s*[\w-]*(?:token|secret|passw|key|authorization|cookie)[\w-]*\s*:\s*).+", re.DOTALL)
# '?X-Amz-Signature=..', '&key=..'
_QUERY = re.compile(r"(?i)([?&][\w-]*(?:sig|signature|key|token|password)=)[^&\s]+")
# What names itself as a token: 'ghp_..', 'glpat-..', 'xoxb-..', 'AKIA..', 'AIza..', 'eyJhbGciOi..' (a JSON web token).
_TOKEN = re.compile(r"\b(?:gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|ya29\.|eyJ|dckr_pat_|npm_|pypi-|r8_|gsk_)[\w.~+/=-]{8,}")
# What looks like one: 24 characters of all three kinds in a row, or 32 hexadecimal ones. A commit in a path, '/snapshots/<40>', is none.
_RANDOM = re.compile(r"(?<![\w/+=.-])(?=[\w+=]*[a-z])(?=[\w+=]*[A-Z])(?=[\w+=]*[0-9])[A-Za-z0-9_+=]{24,}(?![\w/.-])|(?<![\w/.-])[0-9a-fA-F]{32,}(?![\w/.-])")
_UNPRINTABLE = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def shown(cmdline: str) -> t.Optional[str]:
    """A command line for people, with C(***) for what is a secret, cut after C(LONGEST) characters; None where there is none.

    Hidden is the value of every option, variable, header or key of JSON whose name says that it is a secret, what looks like a token,
    the password in a URL, and the text of a program that an interpreter was given with C(-c) or C(-e), as it can hold any of these.

    :param cmdline: the content of /proc/PID/cmdline: arguments with a NUL after each, or a title with NULs or blanks after it.
    """
    words = cmdline[:_MOST].rstrip("\0 ").split("\0")
    if len(words) == 1:
        # A title: 'nginx: worker process', 'sglang::scheduler_TP0', or all arguments in one. Not split as a shell would: it is none's.
        words = _masked(words[0]).split()
    if not any(words):
        return None
    scrubber = _secrets.Scrubber(_secrets.of_command(words))
    text = " ".join(_quoted(_masked(scrubber.text(word))) for word in _hidden(words))
    text = _UNPRINTABLE.sub("?", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 4].rstrip() + " ..."


def name(title: t.Optional[str]) -> t.Optional[str]:
    """The name that nvidia-smi gives a process, which is its title or its program, without secrets; None where there is none."""
    if not title:
        return None
    # A program's path can hold blanks, and no quotes are to be added to it.
    words = title.split(" ")
    return _UNPRINTABLE.sub("?", " ".join(_masked(word) for word in _hidden(words))) if any(words) else None


def _hidden(words: t.Sequence[str]) -> t.List[str]:
    """The words without the values of secret options, and without programs in them."""
    found: t.List[str] = []
    called = words[0].rpartition("/")[2] if words else ""
    flag = next((letter for letter, pattern in _INTERPRETERS.items() if pattern.fullmatch(called)), None)
    secret = program = False
    for word in words:
        option, equals, _value = word.partition("=")
        is_option = word.startswith("-") and len(word) > 1
        if program:
            found.append(word if _HARMLESS.fullmatch(word) else _secrets.HIDDEN)
            program, flag = False, None
            continue
        if equals and _OPTION.fullmatch(option) and _secrets.is_secret(option.lstrip("-")):
            found.append(f"{option}={_secrets.HIDDEN}")
            secret = False
        elif secret and not is_option:
            # SGLang and vLLM both take several keys after one option.
            found.append(_secrets.HIDDEN)
        else:
            found.append(word)
            secret = is_option and not equals and _secrets.is_secret(word.lstrip("-"))
            program = bool(flag and re.fullmatch(f"-[A-Za-z]*{flag}", word))
            # After its script's name, -c is an option of the script.
            flag = flag if len(found) == 1 or (is_option and word != "-m") else None
    return found


def _masked(word: str) -> str:
    """A word without the secrets that it shows by its form."""
    if word[:1] in "{[":
        # Not every such word is JSON, and what is JSON can be nested too deep.
        with contextlib.suppress(ValueError, RecursionError):
            word = json.dumps(_secrets.variables(json.loads(word)))
    word = _HEADER.sub(r"\1***", _logline.mask(word))
    return _RANDOM.sub(_secrets.HIDDEN, _TOKEN.sub(_secrets.HIDDEN, _QUERY.sub(r"\1***", word)))


def _quoted(word: str) -> str:
    """The word as a shell would need it, but for asterisks, which stand for what is hidden."""
    return word if re.fullmatch(r"[\w@%+=:,./*-]+", word) else shlex.quote(word)
