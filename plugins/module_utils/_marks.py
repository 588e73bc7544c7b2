# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What to look for in a log: the engines' tables, cut down to what can still matter, and the fewest texts that find it."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import EARLY, LATE, SIGNATURES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES, Log, Marker, Signature

TRACEBACK = "Traceback (most recent call last)"
# What numbers are written with, hexadecimal ones too: process ids, times, pointers.
_DIGITS = b"0123456789abcdef"
# A bar's updates end in "\r" only.
_LINES = bytes.maketrans(b"\r", b"\n")
# Lines that share so few shapes are worth telling apart: otherwise the texts are looked for in the chunk itself.
_ALIKE = 4
_UNLIKE_FOR = 16
# These find every exception, so a signature that counts only as an exception's text needs no search of its own.
ANCHORS = (TRACEBACK, "rror:", "xception")
NCCL = b"NCCL INFO"
NCCL_WARNS = b"NCCL WARN"


class Marks:
    """The tables for one engine (or for all, C(auto)) from one phase on."""

    _made: t.ClassVar[t.Dict[t.Tuple[str, str], Marks]] = {}

    def __init__(self, engine: str, phase: str) -> None:
        names = [name for name in ENGINES if engine in ("auto", name)]
        self.logs: t.List[Log] = [ENGINES[name].log for name in names]
        self.markers: t.List[t.Tuple[str, Marker]] = [
            (name, marker) for name in names for marker in ENGINES[name].log.markers if marker.start or _telling(name, marker, phase, engine)
        ]
        # The engine's own come first: they are narrower.
        self.signatures: t.List[Signature] = [s for log in self.logs for s in log.signatures] + list(SIGNATURES)
        self.fatal = tuple(text for log in self.logs for text in log.fatal)
        self.options = tuple(path for log in self.logs for path in log.options)
        self.elsewhere = tuple(text for log in self.logs for text in log.elsewhere)
        self.bars = [] if phase == "ready" else _fewest(text for log in self.logs for text in log.bars)
        self.needles = [text for text in self._needles(phase) if not any(shown in text for shown in self.bars)]
        self._encoded = [(text.encode(), _bare(text.encode(), 1)) for text in self.needles]
        self._encoded_bars = [(text.encode(), _bare(text.encode(), 1)) for text in self.bars]
        self._unlike = 0

    @classmethod
    def of(cls, engine: str, phase: str) -> Marks:
        """The tables, made once."""
        if (engine, phase) not in cls._made:
            cls._made[(engine, phase)] = cls(engine, phase)
        return cls._made[(engine, phase)]

    def _needles(self, phase: str) -> t.List[str]:
        """The fewest texts by which every line that matters is found: each may cost a pass over the bytes."""
        past = PHASES.index(phase) > PHASES.index("init_dist")
        wanted = list(ANCHORS) + [marker.text for _name, marker in self.markers] + list(self.fatal)
        if phase != "ready":
            wanted += list(self.elsewhere)
        common = {id(signature) for signature in SIGNATURES}
        for signature in self.signatures:
            # A healthy line that recurs counts as no progress; the other harmless ones need no search.
            idle = signature.kind == "wrapper" or (signature.kind == "noise" and id(signature) in common)
            over = (past and signature.cause in EARLY) or (phase == "ready" and signature.cause not in LATE)
            # Nobody asks a rank that serves for its progress.
            idle = idle or (phase == "ready" and signature.kind == "noise")
            if signature.line and not idle and not over:
                wanted.append(signature.line if isinstance(signature.line, str) else signature.text)
        return _fewest(wanted)

    def present(self, chunk: bytes) -> t.Tuple[t.List[bytes], t.List[bytes], t.Optional[t.Callable[[bytes], bool]]]:
        """Which texts a chunk may hold: of those by which lines are found, and of bars; and, where NCCL speaks in it, whether a text may.

        A log repeats itself: without their digits, the 2000 lines of 256 KiB have some ten shapes, and looking through those costs
        nothing. What no line without digits holds, no line holds.
        """
        if self._unlike:
            self._unlike -= 1
            shapes, column = chunk, 0
        else:
            lines = chunk.translate(_LINES, _DIGITS).split(b"\n")
            unique = set(lines)
            if len(unique) * _ALIKE > len(lines) > 100:
                self._unlike = _UNLIKE_FOR
            shapes, column = b"\n".join(unique), 1
        texts = [pair[0] for pair in self._encoded if pair[column] in shapes]
        bars = [pair[0] for pair in self._encoded_bars if pair[column] in shapes]
        if not (_bare(NCCL, column) in shapes or NCCL_WARNS in texts):
            return texts, bars, None
        return texts, bars, lambda text: _bare(text, column) in shapes

    def match(self, text: str, exception: bool) -> t.Optional[Signature]:
        """The first signature that a line bears; an exception's text bears more than another line."""
        for signature in self.signatures:
            borne = signature.text in text and (signature.line or exception)
            if borne and (not signature.pattern or re.search(signature.pattern, text)):
                return signature
        return None


def _bare(text: bytes, column: int) -> bytes:
    return text.translate(None, _DIGITS) if column else text


def _telling(name: str, marker: Marker, phase: str, engine: str) -> bool:
    """A marker that can still tell something of a rank that has come to a phase."""
    ahead = PHASES.index(marker.phase) - PHASES.index(phase)
    # A rank that serves repeats such lines without end.
    fresh = phase != "ready" or bool(marker.values) or (engine == "auto" and tells_engine(name, marker))
    return ahead > 0 or (ahead == 0 and fresh)


def _fewest(texts: t.Iterable[str]) -> t.List[str]:
    """The texts without those that hold another one."""
    fewest: t.List[str] = []
    for text in sorted(set(texts), key=lambda text: (len(text), text)):
        if not any(short in text for short in fewest):
            fewest.append(text)
    return fewest


def tells_engine(name: str, marker: Marker) -> bool:
    """No other engine prints such a line; what a common server library prints, such as uvicorn, tells nothing."""
    return not any(
        other != name and (marker.text in m.text or m.text in marker.text) for other, engine in ENGINES.items() for m in engine.log.markers
    ) and not any(text in marker.text for text in ("Application startup", "Started server process", "Uvicorn running", "Local node IP"))


def values(pattern: str, text: str) -> t.Dict[str, t.Any]:
    """All that the named groups catch, wherever in the line each of a pattern's alternatives stands."""
    found: t.Dict[str, t.Any] = {}
    for match in re.finditer(pattern, text):
        found.update({name: number(value) for name, value in match.groupdict().items() if value is not None})
    return found


def number(text: str) -> t.Union[int, float, str]:
    """The text as a number where it is one ("1,253,392" tokens are an int)."""
    bare = text.replace(",", "")
    if re.fullmatch(r"-?\d+", bare):
        return int(bare)
    return float(bare) if re.fullmatch(r"-?\d+\.\d+", bare) else text
