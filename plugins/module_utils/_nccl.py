# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What NCCL's own lines in a rank's log tell of its communicators: by which interface, network and device, and how far."""

from __future__ import annotations

import re
import typing as t
from collections import Counter

from ansible_collections.sparkstack.inference.plugins.module_utils import _logline
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import NCCL

_ROWS = [(fact, fact.text.encode(), re.compile(fact.pattern.encode())) for fact in NCCL]
# "[0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]", "[0]eth0:10.77.1.1<0>".
_DEVICE = re.compile(r"\[\d+\]([^\s<]+)")
_KEPT = 16


class NCCLFacts:
    """The facts of one run, gathered chunk by chunk; C(state) is plain data."""

    def __init__(self, state: t.Optional[t.Dict[str, t.Any]] = None) -> None:
        self.state: t.Dict[str, t.Any] = state or {}

    def gather(self, chunk: bytes, holds: t.Callable[[bytes], bool]) -> None:
        """Take in what whole lines tell. :param holds: tells quickly whether a text may be in them."""
        for fact, text, pattern in _ROWS:
            if fact.how == "first":
                if fact.name not in self.state and holds(text):
                    match = pattern.search(chunk)
                    if match:
                        self.state[fact.name] = _text(match.groups())
            elif fact.how == "sum" and holds(text):
                self.state[fact.name] = self.state.get(fact.name, 0) + chunk.count(text)
            elif fact.how == "count" and holds(text):
                found = Counter(pattern.findall(chunk))
                known = self.state.setdefault(fact.name, {})
                for told in found:
                    key = _text(told)
                    if key in known or len(known) < _KEPT:
                        known[key] = known.get(key, 0) + found[told]

    def reading(self) -> t.Dict[str, t.Any]:
        """The facts; empty where NCCL has told none.

        C(version); C(bootstrap) ("eth0:10.77.1.1", its interface and address); C(network) (IB, Socket, or a plugin's name);
        C(devices); C(no_device) (a network that found none, such as NET/IB); C(ranks), C(started) and C(complete) (of the largest
        communicators: how many ranks they have, and how many Init START and Init COMPLETE lines there are); C(channels) (transport
        to number, "NET/IB/0": 2); C(connected) ("Connected all rings" and trees: since about 2.20 that comes with the first collective,
        after Init COMPLETE); C(gdr) (GPU Direct RDMA is used); C(warning) (the first NCCL WARN).
        """
        told: t.Dict[str, t.Any] = {name: dict(value) if isinstance(value, dict) else value for name, value in self.state.items() if value and name != "inits"}
        if "devices" in told:
            told["devices"] = _DEVICE.findall(told["devices"])
        inits: t.Dict[str, int] = self.state.get("inits") or {}
        if inits:
            ranks = max(int(init.split()[0]) for init in inits)
            told.update(ranks=ranks, started=inits.get(f"{ranks} START", 0), complete=inits.get(f"{ranks} COMPLETE", 0))
        if "gdr" in told:
            told["gdr"] = told["gdr"] in ("GDRDMA", "GDR 1")
        return told


def _text(told: t.Union[bytes, t.Sequence[bytes]]) -> str:
    """What a pattern's groups have caught, as one text."""
    raw = told if isinstance(told, bytes) else b" ".join(group for group in told if group)
    return _logline.mask(_logline.plain(raw).strip())[:400]
