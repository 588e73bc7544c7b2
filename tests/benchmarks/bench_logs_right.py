#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many of the real logs are judged right: phase, verdict, cause and culprit against the truth beside each log.

Prints one line: "figure logs_right_share VALUE ratio", and what is wrong to standard error.
"""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: E402, F401 - makes the collection importable
import real_logs  # noqa: E402


def main() -> None:
    wrong = {real_logs.name(folder): real_logs.wrong(folder) for folder in real_logs.CASES}
    for name, words in wrong.items():
        for word in words:
            sys.stderr.write(f"{name}: {word}\n")
    right = sum(not words for words in wrong.values())
    sys.stderr.write(f"{right} of {len(wrong)} logs are judged right\n")
    sys.stdout.write(f"figure logs_right_share {right / len(wrong):.2f} ratio\n")


if __name__ == "__main__":
    main()
