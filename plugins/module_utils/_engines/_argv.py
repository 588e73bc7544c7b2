# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A recipe's arguments as a command line."""

from __future__ import annotations

import json
import typing as t

CACHE = "/cache"
"""Where a container sees the folder that keeps compiled kernels on the node between containers."""


def render(arguments: t.Mapping[str, t.Any], negation: t.Optional[str]) -> t.List[str]:
    """Turn C({option: value}) into argv, in the mapping's order.

    True gives the bare option, None leaves it out, a list gives several values after one option, a mapping is passed
    as JSON (vLLM: C(--compilation-config '{"level": 3}')).

    :param negation: what turns a boolean option off (vLLM: C(no-)), None where the engine has no such form.
    :raises ValueError: False where the engine cannot turn an option off.
    """
    argv: t.List[str] = []
    for name, value in arguments.items():
        option = "--" + name
        if value is None:
            continue
        if value is True:
            argv.append(option)
        elif value is False:
            if negation is None:
                raise ValueError(f"{option}: false: the engine has no option to turn it off; leave it out or set it to null.")
            argv.append("--" + negation + name)
        elif isinstance(value, t.Mapping):
            argv += [option, json.dumps(value, sort_keys=True)]
        elif isinstance(value, (list, tuple)):
            argv += [option] + [str(item) for item in value]
        else:
            argv += [option, str(value)]
    return argv
