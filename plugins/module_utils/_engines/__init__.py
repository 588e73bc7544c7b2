# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The engines that the collection knows."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import sglang, vllm
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Engine

ENGINES: t.Dict[str, Engine] = {engine.name: engine for engine in (sglang.ENGINE, vllm.ENGINE)}


def get(name: str) -> Engine:
    """The engine of that name; :raises ValueError: with the names that there are."""
    try:
        return ENGINES[name]
    except KeyError:
        raise ValueError("'{0}' is not an engine: choose {1}.".format(name, " or ".join(sorted(ENGINES)))) from None
