# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A node's part of the group's plan of bandwidth tests: one after the other, by RDMA where both ends can, else by TCP."""

from __future__ import annotations

import contextlib
import re
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_rate as rate
from ansible_collections.sparkstack.inference.plugins.module_utils._autostart_wire import WireError
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_listen import own
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rail import tcp
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import free_port

Step = t.Mapping[str, t.Any]
Run = t.Callable[[t.List[str]], t.Tuple[int, str, str]]
"""Runs a command: its exit code, and what it wrote to its standard output and to its standard error."""

_CONNECT = 3.0
"""Seconds for the other end's ib_write_bw to come up."""
_GUARD = 6.0
"""Seconds beyond its own after which ib_write_bw is ended: where packets get lost it would go on for long."""
_FAST = 100000
"""Mbit/s from which on more streams are needed: one is bound to one core."""
_ENOUGH, _SHARE = 20000, 0.3
"""Mbit/s that are asked of TCP at most, and the share of the link's speed below which it is slow."""
_BUSY, TRIES = 0.5, 3
"""The share of the time from which on the processor and not the link is the limit: then a slow TCP is tried again, so often in all."""
_GREET = 1.0
"""Seconds that a busy machine needs for the streams of one try."""
_FIGURES = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)
_UNIT = re.compile(r"BW average\[(\w+)/sec\]")
# Megabytes (1000000 bytes). "MB" of perftest before 24.07 is what it calls "MiB" since: 1048576 bytes.
_MEGABYTES = {"Gb": 125.0, "MB": 1.048576, "MiB": 1.048576}


class Steps:
    """Takes the steps, and says how fast it went where this node was the sender."""

    def __init__(self, token: str, run: Run, tools: t.Mapping[str, t.Optional[str]]) -> None:
        """
        :param token: of the own listener. :param run: runs a command. :param tools: where C(ib_write_bw) and C(timeout) are, or None.
        """
        self.token, self.run, self.tools = token, run, tools
        self._lost: t.Set[str] = set()

    def take(self, steps: t.Sequence[Step]) -> t.List[t.Dict[str, t.Any]]:
        """All steps: of those in which it sends C(row), C(mb_s), C(by), C(busy), C(error) and C(rdma_error).

        A peer that was not met once is not waited for again.
        """
        found = []
        for step in steps:
            sends = step["kind"] == "send"
            answer: t.Dict[str, t.Any] = {"mb_s": None, "by": None, "busy": None, "error": None, "rdma_error": None}
            if step["peer"] in self._lost:
                answer["error"] = "{0} was not ready for an earlier test".format(step["peer"])
            else:
                try:
                    answer.update(self._send(step) if sends else self._receive(step))
                except (WireError, OSError) as error:
                    self._lost.add(step["peer"])
                    answer["error"] = "the test with {0} broke off: {1}".format(step["peer"], error)
            if sends:
                found.append(dict(answer, row=step["row"]))
        return found

    def _receive(self, step: Step) -> t.Dict[str, t.Any]:
        rdma = self._rdma(step)
        with contextlib.closing(own(self.token)) as listener:
            port = free_port(step["address"]) if rdma else 0
            listener.ask({"do": "step", "step": step["step"], "port": port}, rate.CALL)
            if rdma:
                # What it has to say the sender's says too.
                self.run(self.command(step, port))
            # A sender that tries again is no sender that is lost.
            wait = rate.MEET + TRIES * (step["seconds"] + _GREET)
            if not listener.ask({"do": "await", "step": step["step"], "seconds": wait}, wait + rate.CALL)["met"]:
                self._lost.add(step["peer"])
        return {}

    def _send(self, step: Step) -> t.Dict[str, t.Any]:
        def call() -> rate.Talk:
            return rate.reach(tcp(step["netdev"], step["address"]), step["peer_address"], step["control"], step["token"])

        number = step["step"]
        # The other end may be at a test that is tried again, which takes long where it was asked to.
        patience = rate.MEET + TRIES * max(0.0, step["seconds"] - _GREET)
        with contextlib.closing(call()) as control:
            ready = control.ask({"do": "ready", "step": number, "seconds": patience}, patience + rate.CALL)
            if not ready["go"]:
                self._lost.add(step["peer"])
                return {"error": "{0} was not ready for the test within {1:.0f} s".format(step["peer"], patience)}
            found: t.Dict[str, t.Any] = {}
            if self._rdma(step) and ready["port"]:
                found = self._write(step, int(ready["port"]))
            if found.get("mb_s") is None:
                streams = 8 if (step.get("speed_mbps") or 0) >= _FAST else 4
                told = rate.send(control, number, step["seconds"], streams, call)
                for _try in range(1, TRIES):
                    slow = told["mb_s"] * 8 < _SHARE * min(step.get("speed_mbps") or 0, _ENOUGH)
                    # Where the kernel does not count it, nobody knows.
                    if not slow or 0 < told["busy"] < _BUSY:
                        break
                    told = max(told, rate.send(control, number, step["seconds"], streams, call), key=lambda one: float(one["mb_s"]))
                found.update(mb_s=told["mb_s"], by="tcp", busy=told["busy"], error=told["error"])
            control.ask({"do": "done", "step": number}, rate.CALL)
        return found

    def _rdma(self, step: Step) -> bool:
        return bool(step.get("rdma") and step.get("peer_rdma") and self.tools.get("ib_write_bw") and self.tools.get("timeout"))

    def _write(self, step: Step, port: int) -> t.Dict[str, t.Any]:
        """Send by RDMA: C(mb_s) and C(by), or C(rdma_error)."""
        until = time.monotonic() + _CONNECT
        while True:
            code, output, said = self.run([*self.command(step, port), step["peer_address"]])
            # "Couldn't connect to 192.168.200.12:18515": the other end's has been started a moment ago.
            if code == 0 or "Couldn't connect" not in said or time.monotonic() > until:
                break
            time.sleep(0.1)
        found = bandwidth(output) if code == 0 else None
        if found is not None:
            return {"mb_s": found, "by": "ib_write_bw"}
        # 124: timeout(1) has ended it.
        why = "it took too long" if code == 124 else (said or output).strip().rpartition("\n")[2] or "exit code {0}".format(code)
        return {"rdma_error": "ib_write_bw from {0} to {1}: {2}".format(step["rdma"]["hca"], step["peer_address"], why.strip())}

    def command(self, step: Step, port: int) -> t.List[str]:
        """The command line of ib_write_bw, but for the address that its client has."""
        device, seconds = step["rdma"], max(1, round(step["seconds"]))
        guard = [str(self.tools["timeout"]), "--kill-after=1", str(int(seconds + _GUARD))]
        where = ["-d", device["hca"], "-i", str(device["port"]), *(["-x", str(device["gid_index"])] if device["gid_index"] is not None else [])]
        return [*guard, str(self.tools["ib_write_bw"]), *where, "-p", str(port), "-s", str(1 << 20), "-q", "4", "-D", str(seconds), "-F", "--report_gbits"]


def bandwidth(output: str) -> t.Optional[float]:
    """The average in megabytes (1000000 bytes) a second that ib_write_bw's table tells, or None where there is none.

    :param output: " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]", then perhaps a warning of the CPU's
        frequency, then " 1048576    11040            0.00               92.61              0.011040": by time (-D) there is no peak.
        Source: perftest, RESULT_FMT_G and REPORT_FMT in src/perftest_parameters.h.
    """
    unit = _UNIT.search(output)
    figures = _FIGURES.findall(output, unit.end()) if unit else []
    if not unit or not figures or unit.group(1) not in _MEGABYTES:
        return None
    return round(float(figures[-1]) * _MEGABYTES[unit.group(1)], 1)
