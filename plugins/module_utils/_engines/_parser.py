# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The program that prints an image's own option parser; each engine adds the lines that make the parser."""

from __future__ import annotations

OPTIONS_MARK = "@@sparkstack-options "
"""Begins the one line of the output that counts: engines print warnings of their own while they are imported."""

DUMP = """
import argparse, importlib.util, json, sys


def dump(parser, version, packages=()):
    options = {}
    # What is registered counts: vLLM 0.33 hides some spellings of an option from the option itself.
    for flag, action in parser._option_string_actions.items():
        if isinstance(action, argparse._HelpAction):
            continue
        kind = getattr(action.type, "__name__", None) if action.type is not None else None
        option = options.setdefault(id(action), {
            "flags": [],
            "nargs": action.nargs,
            "type": kind,
            "choices": None if action.choices is None else [str(choice) for choice in action.choices],
        })
        option["flags"].append(flag)
    described = {"version": version, "options": list(options.values())}
    described["packages"] = [package for package in packages if importlib.util.find_spec(package)]
    sys.stdout.write("\\n@@sparkstack-options " + json.dumps(described) + "\\n")
"""
