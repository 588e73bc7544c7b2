#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the plan of memory is from what a real engine then reports: the runs under tests/fixtures/memory.

Prints to standard error each run's planned and reported weights and tokens, then "figure plan_weights_error_share VALUE ratio" and
"figure plan_kv_tokens_error_share VALUE ratio": the largest error of all runs and ranks.
"""

from __future__ import annotations

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import conftest  # noqa: E402, F401 - makes the collection importable
import real_memory  # noqa: E402


def main() -> None:
    weights, tokens = [], []
    for folder in real_memory.CASES:
        found = real_memory.compared(folder)
        weights.append(found["weights_error_share"])
        tokens.append(found["tokens_error_share"])
        for line in found["lines"]:
            sys.stderr.write(f"{folder.name}: {line}\n")
    sys.stdout.write(f"figure plan_weights_error_share {max(weights):.4f} ratio\n")
    sys.stdout.write(f"figure plan_kv_tokens_error_share {max(tokens):.4f} ratio\n")


if __name__ == "__main__":
    main()
