# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""From the text of one rank's log to its timeline: the phases that it came to, its progress, what may have gone wrong.

Pure and incremental: fed piece by piece, it costs what the new bytes cost, and its state is plain data, so that a module
on the node goes on where the last call stopped. Only lines that hold a text of the engines' tables are looked at.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _bar, _logline
from ansible_collections.sparkstack.inference.plugins.module_utils._candidates import STRENGTH, Candidates, keep, told
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES, Marker, Signature
from ansible_collections.sparkstack.inference.plugins.module_utils._logline import Line
from ansible_collections.sparkstack.inference.plugins.module_utils._marks import TRACEBACK, Marks, tells_engine, values
from ansible_collections.sparkstack.inference.plugins.module_utils._nccl import NCCLFacts

_CHAIN = ("The above exception was the direct cause", "During handling of the above exception")
_NATIVE = ("Exception raised from", "frame #", "<omitting python frames>", "C++ CapturedTraceback")
_FRAME = b"frame #"
_TAKEN = "atchdog thread terminated with exception: "
# Before the traceback of what somebody has caught: uvicorn's of a request, Python's of a destructor, asyncio's of a task.
_CAUGHT = ("Exception in ASGI application", "Exception ignored in", "exception was never retrieved", "future: <", "Exception in callback")
# The outermost frame of a traceback: nobody has caught what was raised, and the process ends with it.
_OUTERMOST = ", in <module>"
# The first frame after "--- Logging error ---": the line is lost, and nothing else.
_LOGGING = ", in emit"
# What Ray tells of where it happened: "ray::RayWorkerWrapper.execute_method() (pid=277, ip=10.0.0.2, actor_id=..", of an actor that died
# "\tip: 10.0.0.2", of one that its memory monitor killed "Memory on the node (IP: 10.0.0.2, ID: ..".
_PLACE = re.compile(r"\bray::.* \(pid=\d+, ip=([\d.a-fA-F:]+)|^\s+ip: ([\d.a-fA-F:]+)$|\(IP: ([\d.a-fA-F:]+), ID: ")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt)(?:\(\w+\))?(?::|$)")
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d")

_PARTIAL = 65536
_EDGE = 16384
_SLICE = 1 << 18


def rank_of(phase: str) -> int:
    """A phase's place in the order."""
    return PHASES.index(phase)


class Timeline:
    """What the log of one rank tells. Feed it, then read it."""

    def __init__(self, engine: str = "auto", year: int = 2000) -> None:
        """
        :param engine: C(auto) finds it out by the first line that only one engine prints.
        :param year: for lines that tell none, until one does.
        """
        self._engine = engine
        self._year = year
        self._rest = b""
        self._earlier: t.List[t.Dict[str, t.Any]] = []
        self._first: t.Optional[float] = None
        self._clock: t.Optional[float] = None
        self._last: t.Optional[float] = None
        self._last_line = ""
        self._useful = 0
        self._stopping = False
        self._runs = 0
        self._marks = Marks.of(engine, "container")
        self._reset()

    def _reset(self) -> None:
        self._phase = "container"
        self._phases: t.List[t.Dict[str, t.Any]] = []
        self._progress: t.Optional[t.Dict[str, t.Any]] = None
        self._found = Candidates()
        self._claims: t.Dict[str, str] = {}
        self._starts: t.List[str] = []
        self._elsewhere = False
        self._heralds: t.Dict[str, str] = {}
        self._spared: t.Optional[str] = None
        self._block: t.Optional[t.Dict[str, t.Any]] = None
        self._nccl = NCCLFacts()

    _PLAIN = (
        "_engine _year _earlier _runs _first _clock _last _last_line _useful _stopping "
        "_phase _phases _progress _claims _starts _elsewhere _heralds _spared _block"
    ).split()

    def state(self) -> t.Dict[str, t.Any]:
        """All that it knows, as plain data."""
        state = {name[1:]: getattr(self, name) for name in self._PLAIN}
        state["rest"] = self._rest.decode("latin-1")
        state["nccl"] = self._nccl.state
        state["found"] = [self._found.order, self._found.listed]
        return state

    @classmethod
    def from_state(cls, state: t.Mapping[str, t.Any]) -> Timeline:
        """The timeline that :meth:`state` came from."""
        timeline = cls()
        for name in cls._PLAIN:
            setattr(timeline, name, state[name[1:]])
        timeline._rest = state["rest"].encode("latin-1")
        timeline._nccl = NCCLFacts(state["nccl"])
        timeline._found = Candidates(*state["found"])
        return timeline

    def run(self) -> t.Dict[str, t.Any]:
        """What an earlier run is told as: the C(phase) that it came to, and the C(cause) of its end or None."""
        causes = sorted(self._found.listed, key=lambda c: -STRENGTH[c["kind"]])
        return {"phase": self._phase, "cause": causes[0]["cause"] if causes else None}

    # Feeding.

    def feed(self, data: t.Union[str, bytes]) -> None:
        """Take in what the log has grown by; it may end anywhere."""
        data = self._rest + (data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - whole > _PARTIAL:
            whole = len(data)
        self._rest = data[whole:]
        self._useful += whole
        start = 0
        while start < whole:
            end = whole
            if whole - start > _SLICE:
                end = data.rfind(b"\n", start, start + _SLICE) + 1 or whole
            self._scan(data[start:end])
            start = end
        self._remember_edge(data)

    def _remember_edge(self, data: bytes) -> None:
        pieces = [piece for piece in re.split(rb"[\r\n]+", data[-_EDGE:]) if piece.strip()]
        if len(pieces) == 1:
            # SGLang 0.5.23 begins with a line of 19 kB.
            pieces = [piece for piece in re.split(rb"[\r\n]+", data[-_PARTIAL:]) if piece.strip()]
        if not pieces:
            return
        line = _logline.mask(_logline.read(pieces[-1][:4000], self._year)[-1].text.strip())
        self._last_line = line if len(line) <= 400 else line[:400] + " ..."
        for piece in reversed(pieces[-200:]):
            if not _CLOCK.search(piece):
                continue
            told = _logline.read(piece, self._year)[0].time
            if told is not None:
                self._last = told
                break

    def _begin(self, chunk: bytes) -> None:
        """The log's first lines: the process runs, whatever it prints; the first time that one tells is its start."""
        if self._phases and not _CLOCK.search(chunk, 0, _EDGE):
            return
        for piece in re.split(rb"[\r\n]+", chunk[:_EDGE]):
            if not piece.strip():
                continue
            if self._phase == "container" and not self._elsewhere:
                self._enter("parse_args", self._first)
            if self._first is None and _CLOCK.search(piece):
                self._year = _logline.year_of(_logline.plain(piece)) or self._year
                self._first = _logline.read(piece, self._year)[0].time
                if self._first is not None and self._phases and self._phases[0]["time"] is None:
                    self._phases[0]["time"] = self._first
            if self._first is not None:
                break

    def _scan(self, chunk: bytes) -> None:
        if self._first is None or (self._phase == "container" and not self._elsewhere):
            self._begin(chunk)
        self._marks = Marks.of(self._engine, self._phase)
        texts, bars, nccl = self._marks.present(chunk)
        places = [(chunk.find(text), text) for text in texts]
        position = 0
        while position < len(chunk):
            if self._block is not None:
                end = _logline.end_of_line(chunk, position)
                if self._block["kind"] == "native" and chunk.startswith(_FRAME, position) and not self._first_of_its_kind():
                    self._useful -= end - position
                    position = end + 1
                    continue
                for line in _logline.read(chunk[position:end], self._year):
                    if not self._in_block(line) and line.text:
                        self._event(line)
                position = end + 1
                continue
            places = [(chunk.find(n, position) if p < position else p, n) for p, n in places]
            places = [place for place in places if place[0] >= 0]
            found, needle = min(places) if places else (len(chunk), b"")
            start = chunk.rfind(b"\n", position, found) + 1 or position
            start = chunk.rfind(b"\r", start, found) + 1 or start
            if bars:
                self._bars(chunk, position, start if places else found, bars)
            if not places:
                break
            end = _logline.whole_line(chunk, start, found)
            runs = self._runs
            for line in _logline.read(chunk[start:end], self._year, needle.decode()):
                if self._block is None or not self._in_block(line):
                    self._event(line)
            if runs != self._runs:
                # A new run: from here on, all texts matter again.
                self._scan(chunk[end + 1 :])
                return
            position = end + 1
        if nccl is not None:
            self._nccl.gather(chunk, nccl)

    def _bars(self, chunk: bytes, start: int, end: int, bars: t.Sequence[bytes]) -> None:
        """Between two other lines that matter, only the first update of a bar (its phase begins) and the last one tell anything."""
        places = [place for text in bars for place in (chunk.find(text, start, end), chunk.rfind(text, start, end)) if place >= 0]
        seen = -1
        for place in sorted({min(places), max(places)} if places else ()):
            begin = max(chunk.rfind(b"\n", start, place), chunk.rfind(b"\r", start, place)) + 1 or start
            if begin > seen:
                self._event(_logline.read(chunk[begin : _logline.end_of_line(chunk, place)], self._year, "%")[0])
            seen = begin

    # Judging a line.

    def _event(self, line: Line) -> None:
        """A line outside of a traceback."""
        text = line.text
        # uvicorn's "INFO:     Application startup complete." tells no time: the last one told stands for it.
        self._clock = line.time if line.time is not None else self._clock
        progress = _bar.read(text)
        if progress:
            self._progress = dict(progress, phase=self._phase)
        for name, marker in self._marks.markers:
            if marker.text in text:
                self._mark(name, marker, line)
                break
        if self._phase in ("container", "parse_args") and any(word in text for word in self._marks.elsewhere):
            # A Ray node: its own phases will stand in the head's log; a head goes on with the engine's own lines.
            self._phase, self._phases, self._elsewhere = "container", [], True
            self._found.listed = [c for c in self._found.listed if c["fatal"]]  # it has found the head's Ray
        # Other processes may speak between: "(Worker_TP5 ..) WorkerProc hit an exception.", "(Worker_TP6 ..) ..", "(Worker_TP5 ..) Traceback ..".
        herald = self._heralds.pop(line.process, None)
        doomed = any(word in text for word in self._marks.fatal)
        spared, self._spared = self._spared == line.process, line.process if any(word in text for word in _CAUGHT) else None
        if TRACEBACK in text:
            if line.body.startswith((" ", "\t")) and line.body.lstrip().startswith(TRACEBACK) and herald is None:
                return  # quoted: site's "Error processing line 1 of /usr/lib/..pth:", "  Traceback ..", ".. Remainder of file ignored"
            self._open(line, fatal=doomed or herald is not None or not (line.process or line.logged or spared), herald=herald)
            return
        if doomed:
            self._heralds[line.process] = _logline.mask(text)
        # torch: "[PG ID 2 PG GUID 3 Rank 0] Process group watchdog thread terminated with exception: CUDA error: out of memory".
        taken = _TAKEN in text
        bare = taken or _EXCEPTION.match(line.body) is not None
        signature = self._marks.match(text, bare)
        if signature is None:
            if bare:
                self._add("unknown", "unknown", line, fatal=taken)
        elif signature.kind == "stop":
            self._stop()
        elif signature.kind == "noise":
            self._useful -= len(text)
        elif signature.kind != "wrapper":
            index = self._add(signature.cause, signature.kind, line, taken or bool(signature.line), signature)
            if signature.kind == "soft":
                self._useful -= len(text)
                self._block = {"kind": "native", "key": line.process, "candidate": index, "quiet": signature.kind}

    def _stop(self) -> None:
        """It was asked to end; after a failure that is the engine clearing up."""
        self._stopping = self._stopping or not any(candidate["fatal"] for candidate in self._found.listed)

    def _mark(self, name: str, marker: Marker, line: Line) -> None:
        if marker.start:
            if marker.text in self._starts or rank_of(self._phase) > rank_of("parse_args"):
                self._earlier.append(self.run())
                del self._earlier[:-5]
                self._reset()
                self._runs += 1
                self._stopping = False
            self._starts.append(marker.text)
        if self._engine == "auto" and tells_engine(name, marker):
            self._engine = name
        self._elsewhere = False
        for claim, pattern in ENGINES[name].log.claims.items():
            match = re.search(pattern, line.text)
            elsewhere = _logline.address(line.process)  # one of another node's that Ray brought here
            if match and elsewhere is None:
                self._claims.setdefault(claim, match.group(1))
            elif match and claim == "rank":
                self._claims.setdefault("node of rank " + match.group(1), str(elsewhere))
        if rank_of(marker.phase) > rank_of(self._phase) and not self._bereft():
            self._enter(marker.phase, self._clock)
        if marker.values:
            for phase in self._phases:
                if phase["phase"] == (marker.of or marker.phase):
                    phase["values"].update(values(marker.values, line.text))

    def _bereft(self) -> bool:
        """It has lost a process or its peers: after "Scheduler or DataParallelController 1703 terminated with -9" SGLang's worker goes
        on as if it were the head, with "Started server process", and fails over that."""
        return any(candidate["fatal"] and candidate["kind"] in ("death", "peer") for candidate in self._found.listed)

    def _enter(self, phase: str, when: t.Optional[float]) -> None:
        self._phase = phase
        self._phases.append({"phase": phase, "time": when, "values": {}})
        self._progress = None
        # What it only struggled with before is overcome: it came further.
        self._found.listed = [c for c in self._found.listed if c["fatal"]]
        self._block = None
        self._marks = Marks.of(self._engine, phase)

    # Tracebacks.

    def _open(self, line: Line, fatal: bool, herald: t.Optional[str]) -> None:
        lines = [herald] if herald is not None else []
        self._block = {
            "kind": "python",
            "key": line.process,
            # vLLM puts its prefix before every line of a traceback, SGLang before the first; the next line tells.
            "logged": None,
            "stage": "frames",
            "lines": lines + [_logline.mask(line.text)],
            "fatal": fatal,
            "time": line.time,
            "candidate": None,
            "foreign": 0,
            "length": 0,
            "direct": True,
            "top": True,
        }

    def _in_block(self, line: Line) -> bool:
        """Take a line into the open block; False where it is none of its lines, and then the block may be over."""
        block = t.cast(t.Dict[str, t.Any], self._block)
        if block["kind"] == "native":
            return self._in_native(block, line)
        if block["logged"] is None and line.process == block["key"] and line.body[:2] == "  ":
            block["logged"] = line.logged
        own = line.process == block["key"] and line.logged == block["logged"]
        if not own:
            block["foreign"] += 1
            if block["foreign"] > 200 or (block["stage"] != "frames" and not block["key"]):
                self._block = None
            return False
        body = line.body
        empty = not body.strip()
        if block["stage"] == "after":
            if empty:
                return True
            if not body.startswith(_CHAIN):
                self._block = None
                return False
            block["stage"] = "frames"
        if block["stage"] == "message" and not empty:
            block["length"] += 1
            if TRACEBACK in body or block["length"] > 40 or any(word in body for word in self._marks.fatal):
                self._block = None
                return False
            if _EXCEPTION.match(body) or self._explained(block, line):
                self._final(block, line)
        elif block["stage"] == "message":
            block["stage"] = "after"
            return True
        elif body.startswith(_CHAIN):
            block["direct"] = body.startswith(_CHAIN[0])
        elif not empty and body[0] not in " \t" and not body.startswith(TRACEBACK):
            block["stage"], block["length"] = "message", 0
            self._final(block, line)
        known = self._found.numbered(block["candidate"])
        if body.startswith(TRACEBACK):
            block["top"] = True
        elif block["top"] and body.startswith('  File "'):
            block["top"] = False
            block["fatal"] = (block["fatal"] or body.endswith(_OUTERMOST)) and not body.endswith(_LOGGING)
        if known is not None:
            known["fatal"] = known["fatal"] or block["fatal"]
            place = _PLACE.search(body) if block["stage"] == "message" and not known["address"] else None
            known["address"] = next(filter(None, place.groups())) if place else known["address"]
        keep(known["lines"] if known else block["lines"], _logline.mask(line.text))
        return True

    def _first_of_its_kind(self) -> bool:
        """The open block's lines are kept: of a trouble that is repeated without end, only the first time's are."""
        candidate = self._found.numbered(t.cast(t.Dict[str, t.Any], self._block)["candidate"])
        return candidate is not None and candidate["count"] == 1

    def _in_native(self, block: t.Dict[str, t.Any], line: Line) -> bool:
        if line.process == block["key"] and line.body.startswith(_NATIVE):
            self._useful -= len(line.text)
            candidate = self._found.numbered(block["candidate"])
            if candidate and candidate["count"] == 1:
                keep(candidate["lines"], _logline.mask(line.text))
            return True
        self._block = None
        return False

    def _about_options(self, lines: t.Sequence[str]) -> bool:
        frame = next((text for text in reversed(lines) if '  File "' in text), "")
        return any(path in frame for path in self._marks.options)

    def _explained(self, block: t.Dict[str, t.Any], line: Line) -> bool:
        """A further line of a message tells the reason, where the first one tells only that there is one.

        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "  Value error, The checkpoint you are
        trying to load has model type `qwen4` but Transformers does not recognize this architecture."
        """
        known = self._found.numbered(block["candidate"])
        signature = self._marks.match(line.text, True) if known and known["kind"] == "unknown" else None
        return signature is not None and signature.kind == "cause"

    def _final(self, block: t.Dict[str, t.Any], line: Line) -> None:
        """The last line of a traceback, or of one in a chain: what was raised."""
        signature = self._marks.match(line.text, True)
        if signature is not None and signature.kind in ("noise", "stop"):
            if signature.kind == "stop":
                self._stop()
            return
        cause, kind = (signature.cause, signature.kind) if signature else ("unknown", "unknown")
        known = self._found.numbered(block["candidate"])
        if signature is None and self._about_options(known["lines"] if known else block["lines"]):
            cause, kind = "bad_flag", "cause"
        kind = "unknown" if cause == "unknown" and kind == "cause" else kind
        cause = "unknown" if kind == "wrapper" else cause
        if known is None:
            fresh = self._add(cause, kind, line, block["fatal"], signature, block)
            # A repetition goes on in its own block: the first one's lines are kept.
            block["candidate"] = fresh if fresh == self._found.order else None
            return
        # A chain: what stands first was there first, unless only what follows is known, or is no longer a wrapper.
        better = STRENGTH[kind] > STRENGTH[known["kind"]] and not (kind == "unknown" and known["kind"] == "peer")
        # vLLM: a bare "TimeoutError", the direct cause of "TimeoutError: RPC call to execute_model timed out.".
        better = better or (signature is not None and kind != "wrapper" and known["kind"] == "unknown" and ":" not in known["message"])
        # "socket.gaierror: .. Temporary failure in name resolution", and at the end of the chain that the hub's files are not here.
        better = better or (known["cause"] == "net_unreachable" and cause in ("missing_weights", "permission"))
        if better or (kind == known["kind"] == "unknown" and not block["direct"]):
            known.update(told(cause, kind, line.body, line.text, signature))

    def _add(
        self, cause: str, kind: str, line: Line, fatal: bool, signature: t.Optional[Signature] = None, block: t.Optional[t.Dict[str, t.Any]] = None
    ) -> int:
        """Note a candidate, at the time of its line, or the last one told; :returns: its number."""
        when = block["time"] if block and block["time"] is not None else line.time if line.time is not None else self._clock
        return self._found.add(cause, kind, line, fatal, when, self._phase, signature, block["lines"] if block else None)

    # Reading.

    def reading(self) -> t.Dict[str, t.Any]:
        """What the log tells so far.

        Keys: C(engine), C(phase), C(phases) (list of C(phase), C(time), C(seconds) or None while it lasts, C(values)), C(progress)
        (C(phase), C(percent), C(done), C(total) and, where the bar tells them, C(elapsed_seconds) and C(remaining_seconds); or None),
        C(candidates) (see C(_diagnosis)), C(claims), C(elsewhere), C(stopping), C(earlier) (runs before this one), C(nccl) (see
        C(_nccl)), C(last_line), C(first_time), C(last_time) (seconds since the epoch by the log's own clock) and C(useful) (bytes that
        were no repetition of a trouble).
        """
        progress = self._progress
        # SGLang since 0.5.10 ends a bar's updates with "\\r" only: the newest one has no end yet.
        newest = _bar.read(_logline.plain(self._rest)) if self._phase != "ready" and self._rest else None
        if newest:
            progress = dict(newest, phase=self._phase)
        phases = []
        for index, phase in enumerate(self._phases):
            following = self._phases[index + 1]["time"] if index + 1 < len(self._phases) else None
            lasted = round(following - phase["time"], 3) if following is not None and phase["time"] is not None else None
            phases.append(dict(phase, seconds=lasted))
        return {
            "engine": None if self._engine == "auto" else self._engine,
            "phase": self._phase,
            "phases": phases,
            "progress": progress,
            "candidates": self._found.listed,
            "claims": self._claims,
            "elsewhere": self._elsewhere,
            "stopping": self._stopping,
            "earlier": self._earlier,
            "nccl": self._nccl.reading(),
            "last_line": self._last_line,
            "first_time": self._first,
            "last_time": self._last,
            "useful": self._useful,
        }
