# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults made for real on the lab's nodes, and what the collection makes of them: tables, then one line a figure.

Usage: faults.py [--part PART] [--row TEXT] [--lock FILE] [--list]. Called by `make faults`. Parts, by default all:
  converge   a fault on a deployment that serves, and what one run of the deploy playbook does about it, up to a completion
  autostart  reboots without the controller: what the nodes do by themselves
  vllm       what the watch says of each fault with the real vLLM, and after how many seconds
  sglang     the same with the rehearsal of SGLang
  healthy    healthy starts, some slowed on purpose: none may be called stalled or failed
  fabric     wrong cables, addresses and ports, and what the preflight says of each; the fabric's network given and taken back
  guard      a load that takes more memory than its node has, with the memory guard and without
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from faultlab import converge, guarding, healthy, mending, rows, run, suites
from faultlab.engines import ENGINES, SGLANG

PARTS = ("converge", "autostart", "vllm", "sglang", "healthy", "guard", "fabric")


def main(arguments: list[str]) -> int:
    """Run the parts; 0 when every row is right."""
    parser = argparse.ArgumentParser(prog="faults.py", description="Faults made for real on the lab's nodes.")
    parser.add_argument("--part", action="append", choices=PARTS, help="what to run, may be given several times (default: all)")
    parser.add_argument("--row", action="append", metavar="TEXT", help="only rows whose name holds this")
    parser.add_argument("--lock", metavar="FILE", help="a file to lock while a row runs, for those who share the lab")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    options = parser.parse_args(arguments)
    parts = options.part or list(PARTS)
    # Ended from outside, it leaves clean nodes behind all the same.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("faults: ended from outside"))

    def chosen(names: list[str]) -> list[str]:
        return [name for name in names if not options.row or any(text.lower() in name.lower() for text in options.row)]

    if options.list:
        for name, engine in ENGINES.items():
            print(f"{name}:", *(f"  {row.name}" for row in rows.rows_for(engine)), sep="\n")
        print("guard:", *(f"  {row.name}" for row in guarding.ROWS), sep="\n")
        print("converge:", *(f"  {fault.name}" for fault in mending.FAULTS), sep="\n")
        return 0
    begin = time.monotonic()
    mended: list[converge.Outcome] = []
    outcomes: list[run.Outcome] = []
    engines = needed = [ENGINES[part] for part in parts if part in ENGINES]
    if "guard" in parts and SGLANG not in engines:
        needed = [*engines, SGLANG]
    with run.alone(options.lock):
        run.prepare(list(ENGINES.values()) if "healthy" in parts else needed)
    for engine in engines:
        picked = [row for row in rows.rows_for(engine) if row.name in chosen([row.name])]
        outcomes += run.matrix(engine, picked, options.lock)
    if "guard" in parts:
        outcomes += run.matrix(SGLANG, [row for row in guarding.ROWS if chosen([row.name])], options.lock)
    if "healthy" in parts:
        outcomes += healthy.starts(options.lock)
    if "converge" in parts:
        mended += converge.matrix([fault for fault in mending.FAULTS if chosen([fault.name])], options.lock)
    if "autostart" in parts:
        with run.alone(options.lock):
            mended += suites.scenarios(suites.AUTOSTART, options.row or [])
    told: list[converge.Outcome] = []
    if "fabric" in parts:
        with run.alone(options.lock):
            told += suites.scenarios(suites.FABRIC, options.row or [])
    if outcomes:
        print(f"\n{run.table(outcomes)}")
    for rows_of in (mended, told):
        if rows_of:
            print(f"\n{converge.table(rows_of)}")
    print(f"{time.monotonic() - begin:.0f} s in all")
    print(*run.figures(outcomes, [outcome.right for outcome in [*mended, *told]]), *converge.figures(mended), *suites.figures(told), sep="\n")
    return 0 if all(outcome.right for outcome in [*mended, *told]) and all(outcome.right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
