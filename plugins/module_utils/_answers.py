# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an image has told, kept on the node for the image's content, so that it is asked once."""

from __future__ import annotations

import json
import os
import tempfile
import typing as t


def keep(path: str, answer: t.Mapping[str, t.Any]) -> None:
    """Write the answer, in one step; its folder is made. :raises OSError: when the disk does not take it."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(handle, "w") as stream:
        json.dump(answer, stream)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def kept(path: str) -> t.Optional[t.Dict[str, t.Any]]:
    """The answer that was kept, or None: also where it is no JSON."""
    try:
        with open(path, encoding="utf-8") as stream:
            return t.cast("t.Dict[str, t.Any]", json.load(stream))
    except (OSError, ValueError):
        return None
