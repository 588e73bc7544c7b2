# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A recipe's arguments against the option parser of the image that is to run them.

What is valid differs per engine I(version): C(--language-model-only) exists in SGLang since 0.5.18 and in vLLM since
0.15. Only the image's own parser knows, so it is asked (see _engines/_parser.py), and its rules are followed here:
argparse takes an unambiguous beginning of a long option for the option, vLLM takes C(_) for C(-).
"""

from __future__ import annotations

import difflib
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Engine

Option = t.Dict[str, t.Any]


class Parser:
    """The option parser of one image."""

    def __init__(self, engine: Engine, described: t.Mapping[str, t.Any]) -> None:
        """
        :param described: C({"version": str, "options": [{"flags", "nargs", "type", "choices"}], "packages": [str]}), as the image printed it.
        """
        self.engine = engine
        self.version = str(described["version"])
        self.packages = None if described.get("packages") is None else frozenset(described["packages"])
        """The packages there of those that were asked for; None where nobody asked."""
        self.options: t.Dict[str, Option] = {}
        for option in described["options"]:
            for flag in option["flags"]:
                self.options[flag] = option

    def _spelling(self, name: str) -> str:
        """The option as the parser sees it."""
        return "--" + (name.replace("_", "-") if self.engine.launch.underscores else name)

    def matches(self, name: str) -> t.List[str]:
        """The long options that a name without dashes may stand for: one is right, none is unknown, more is ambiguous."""
        flag = self._spelling(name)
        if flag in self.options:
            return [flag]
        base = flag.split(".", 1)[0]
        # vLLM: --compilation-config.level 3 sets one key of a JSON option.
        if base != flag and base in self.options:
            return [base]
        if not self.engine.launch.abbreviations:
            return []
        # Two spellings of one option are as ambiguous as two options: argparse counts what is registered.
        return sorted(known for known in self.options if known.startswith(flag))

    def nearest(self, name: str) -> t.Optional[str]:
        """The valid long option that somebody who wrote this name most likely meant."""
        meant = self.engine.launch.equivalents.get(name.replace("_", "-"))
        if meant:
            found = self.matches(meant)
            if len(found) == 1:
                return "--" + meant if meant.startswith("no-") else found[0]
        known = [flag for flag in self.options if flag.startswith("--")]
        # vLLM: -tp is short for --tensor-parallel-size, and --tp is nothing.
        short = self.options.get("-" + name)
        if short:
            return str(next(flag for flag in short["flags"] if flag.startswith("--")))
        close = difflib.get_close_matches(self._spelling(name), known, n=1, cutoff=0.5)
        return close[0] if close else None

    def problem(self, name: str, value: t.Any) -> t.Optional[str]:
        """One sentence on what is wrong with an argument, or None."""
        title = f"{self.engine.title} {self.version}"
        flag = "--" + name
        found = self.matches(name)
        if not found:
            nearest = self.nearest(name)
            hint = f"the nearest that it has is {nearest}" if nearest else "it has none like it"
            return f"{flag} is not an option of {title}: {hint}."
        if len(found) > 1:
            return "{} is ambiguous in {}: write one of {}.".format(flag, title, ", ".join(found[:6]))
        option = self.options[found[0]]
        owned = sorted({spelling.lstrip("-") for spelling in option["flags"]} & self.engine.launch.owned)
        if owned:
            return "{} is set from the plan (it is {} {}): take it out of the recipe's arguments.".format(flag, self.engine.title, "--" + owned[0])
        return self._value_problem(flag, title, option, value)

    def _value_problem(self, flag: str, title: str, option: Option, value: t.Any) -> t.Optional[str]:
        if value is None:
            return None
        if option["nargs"] == 0:
            if not isinstance(value, bool):
                return f"{flag} of {title} takes no value, but the recipe gives {value!r}: write true."
            negation = self.engine.launch.negation
            if value is False and (negation is None or len(self.matches(negation + flag[2:])) != 1):
                return f"{flag} of {title} can't be turned off: leave it out of the recipe's arguments instead of giving false."
            return None
        if isinstance(value, bool):
            optional = option["nargs"] in ("?", "*")
            if optional and value:
                return None
            return f"{flag} of {title} needs a value, but the recipe gives {str(value).lower()}."
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        several = option["nargs"] in ("*", "+") or isinstance(option["nargs"], int)
        if len(values) > 1 and not several:
            return f"{flag} of {title} takes one value, but the recipe gives {len(values)}."
        for item in values:
            if option["choices"] is not None and str(item) not in option["choices"]:
                return "{} of {} does not take {!r}: choose one of {}.".format(flag, title, item, ", ".join(option["choices"][:20]))
            wanted = {"int": int, "float": float}.get(option["type"] or "")
            if wanted is not None:
                try:
                    wanted(str(item))
                except ValueError:
                    return "{} of {} takes {}, but the recipe gives {!r}.".format(flag, title, "a whole number" if wanted is int else "a number", item)
        return None

    def problems(self, arguments: t.Mapping[str, t.Any]) -> t.List[str]:
        """One sentence for each argument that the image would refuse."""
        found = (self.problem(name, value) for name, value in arguments.items())
        return [sentence for sentence in found if sentence]


def read_description(output: str, mark: str) -> t.Optional[str]:
    """The one line of a parser program's output that counts, without its mark, or None."""
    for line in reversed(output.splitlines()):
        if line.startswith(mark):
            return line[len(mark) :]
    return None
