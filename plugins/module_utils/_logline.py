# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""One line of a log, whatever it was collected with: its message, its process, its time; without its secrets."""

from __future__ import annotations

import json
import re
import typing as t
from datetime import datetime, timedelta, timezone

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import PREFIXES

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# What collectors put before a line: `docker logs -t` and `kubectl logs --timestamps` ("2026-11-29T22:42:04.123Z "), CRI
# files (".. stdout F "), docker compose ("head-1  | "), `kubectl logs --prefix` ("[pod/x/y] "), journald.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) (?:std(?:out|err) [FP] )?")
# Docker and CRI write what is longer than 16 KiB in parts: CRI files mark them ("2026-11-29T22:42:04.123Z stderr P .."), in Docker's
# JSON files the text of a part has no line end, and `docker logs -t` has a time before each part within the line.
_CRI_PART = re.compile(rb"\S+ std(?:out|err) P ")
_CRI_JOINT = re.compile(r"\n\S+ std(?:out|err) [FP] ")
_JSON_JOINT = re.compile(r'",\s*"stream"[^\n]*\n\{"log":"')
_DOCKER_JOINT = re.compile(r"(?<=.)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")
_PART = 16384
# journald's "Nov 30 11:00:00 spark1 docker[812]: ", with -o short-iso "2026-11-30T11:00:00+0000 spark1 ..", with -o short-monotonic
# "[12345.678901] spark1 .."; `docker service logs` ("vllm.1.x7@spark2    | "), `srun --label` ("1: ") and `mpirun --tag-output`.
_COLLECTOR = re.compile(
    r"[A-Za-z0-9][\w.@-]* +\| ?|\[pod/[^\]]+\] |(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? |\[ *\d+\.\d+\] )?[\w.-]+ [\w./-]+\[\d+\]: "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{1,3}: |\[\d+,\d+\]<std(?:out|err)>: ?"
)
# "(Worker_TP0 pid=25763) ", "(RayWorkerProc pid=17722, ip=192.168.200.12) ", "(pid=17654) ", "(raylet, ip=192.168.200.12) "; and torch's
# before each line of an exception that nobody caught: "[rank1]: Traceback (most recent call last):".
_PROCESS = re.compile(r"(?:\((?:(?:[\w ./:-]+ )?(?:rank=\d+ )?pid=\d+[^()]*|raylet(?:, ip=[^()]*)?)\) ?|\[rank\d+\]:(?: |$))+")
_ADDRESS = re.compile(r"\bip=([\da-fA-F.:]+)")
_LOGGER = re.compile("|".join(f"(?:{prefix})" for prefix in [e.log.prefix for e in ENGINES.values()] + list(PREFIXES)))
_TIME = re.compile(
    r"(?P<year>\d{4})-(?P<mon>\d\d)-(?P<day>\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<frac>\d+))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<mon2>\d\d)-(?P<day2>\d\d) (?P<time2>\d\d:\d\d:\d\d)(?:\.(?P<frac2>\d+))?"
    r"|\[[IWEF](?P<mon3>\d\d?)(?P<day3>\d\d) (?P<time3>\d\d:\d\d:\d\d)\.(?P<frac3>\d+)"
)
_MESSAGE_KEYS = ("message", "msg", "log", "event", "text", "MESSAGE", "line", "textPayload", "body")
_TRACE_KEYS = ("exc_info", "exc_text", "exception", "traceback", "stack_info", "stack")
_TIME_KEYS = ("timestamp", "time", "asctime", "ts", "@timestamp")

# "api_key='..'", "'api_key': '..'", "'api_key': ['..', '..']", in the quotes that Python chose.
_NAMED = r"(?i)\b([\w-]{0,40}(?:api_key|access_key|password|(?:hf|access|auth|api|hub)_token|secret)['\"]?\s*[:=]\s*"
_SECRETS = (
    (re.compile(r"(?i)(--?[\w-]{0,40}api[-_]key(?:=|\s+))(?!None\b)[^\s,'\"]+"), r"\1***"),
    (re.compile(_NAMED + r"\[)[^\]]+"), r"\1***"),
    (re.compile(_NAMED + r"')(?:\\.|[^'\\])+"), r"\1***"),
    (re.compile(_NAMED + r'")(?:\\.|[^"\\])+'), r"\1***"),
    (re.compile(r"(?i)\b([A-Z_]{0,40}(?:TOKEN|API_KEY|ACCESS_KEY|PASSWORD|SECRET)=)(?!None\b)[^\s,'\"]+"), r"\1***"),
    # "https://user:word@proxy:3128".
    (re.compile(r"(://[^\s/:@]{0,64}:)[^\s/@]+(?=@)"), r"\1***"),
    (re.compile(r"(?i)\b(Bearer\s+)[\w.~+/=-]{6,}"), r"\1***"),
    (re.compile(r"\b(hf_|nvapi-|sk-)[A-Za-z0-9_-]{12,}"), r"\1***"),
)
# One of these is in every text with a secret.
_SIGNS = ("api", "password", "token", "secret", "bearer", "hf_", "sk-", "access_key", "://")


class Line:
    """A line as the engine wrote it."""

    __slots__ = ("text", "body", "process", "logged", "_stamp", "_told")

    def __init__(self, text: str, body: str, process: str, logged: bool, stamp: t.Optional[float], told: t.Tuple[str, int]) -> None:
        """
        :param text: without colours and without what a collector put before it.
        :param body: the message alone, without the logger's prefix.
        :param process: the process that a prefix of its own names, or nothing.
        :param logged: a logger's prefix stands before the message.
        :param stamp: the collector's time. :param told: the text that tells a time otherwise, and the year for it.
        """
        self.text, self.body, self.process, self.logged = text, body, process, logged
        self._stamp, self._told = stamp, told

    @property
    def time(self) -> t.Optional[float]:
        """Seconds since the epoch, the line's own clock taken for UTC; None where it tells no time."""
        return self._stamp if self._stamp is not None else seconds(*self._told)


def mask(text: str) -> str:
    """The text with API keys and tokens replaced by asterisks."""
    low = text.lower()
    if not any(sign in low for sign in _SIGNS):
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def plain(raw: bytes) -> str:
    """The line without colours, and with what it can't mean replaced."""
    text = raw.decode("utf-8", "replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


def goes_on(raw: bytes) -> bool:
    """The line, taken from a collector's file, is only a part of the engine's own: the next one goes on with it."""
    if len(raw) < _PART:
        return False
    if raw[:8] == b'{"log":"':
        tail = raw[-120:]
        return b'"stream"' in tail and b'\\n","stream"' not in tail
    return _CRI_PART.match(raw) is not None


def end_of_line(chunk: bytes, position: int) -> int:
    """Where the line that holds a position ends: a bar's updates end with a carriage return."""
    end = chunk.find(b"\n", position)
    end = end if end >= 0 else len(chunk)
    bare = chunk.find(b"\r", position, end)
    return bare if bare >= 0 else end


def whole_line(chunk: bytes, start: int, position: int) -> int:
    """The end of the line that begins at start: a collector writes what is longer than 16 KiB as several, each marked as a part."""
    end = end_of_line(chunk, position)
    while end < len(chunk) and goes_on(chunk[start:end]):
        start, end = end + 1, end_of_line(chunk, end + 1)
    return end


def read(raw: bytes, year: int, at: str = "") -> t.List[Line]:
    """Take a line apart; a line of JSON with a traceback in it becomes several.

    :param year: stands in where the line tells none (vLLM: "INFO 11-29 22:16:01").
    :param at: the text that was searched for: the last time before it counts, for a log line can be glued to the end of a
        progress bar ("4.74s/it][2026-11-29 22:43:39 TP0] Using default MoE kernel config").
    """
    text = plain(raw).rstrip("\r\n")
    if len(text) > _PART:
        text = _joined(text)
    stamp: t.Optional[float] = None
    for _round in range(3):
        match = _STAMP.match(text)
        if match:
            stamp = stamp if stamp is not None else seconds(match.group(1), year)
            text = text[match.end() :]
        else:
            match = _COLLECTOR.match(text)
            if not match:
                break
            text = text[match.end() :]
    text = text.rstrip()
    if text[-1:] == "}":
        # vLLM puts its process even before JSON: "(EngineCore pid=25591) {"asctime": ..".
        match = _PROCESS.match(text)
        process, bare = (match.group(0), text[match.end() :]) if match else ("", text)
        unwrapped = _unwrap(bare) if bare[:1] == "{" else None
        if unwrapped is not None:
            message, told = unwrapped
            when = stamp if stamp is not None else seconds(told, year)
            return [_split(process + part, when, year, at) for part in message.rstrip("\n").split("\n")]
    return [_split(text, stamp, year, at)]


def _joined(text: str) -> str:
    """A long line's parts as the one line that they were."""
    if "\n" not in text:
        return _DOCKER_JOINT.sub("", text)
    return _JSON_JOINT.sub("", text) if text[:8] == '{"log":"' else _CRI_JOINT.sub("", text)


def _split(text: str, stamp: t.Optional[float], year: int, at: str) -> Line:
    text = _ANSI.sub("", text) if "\x1b" in text else text
    rest = text
    process = ""
    logged = False
    for _round in range(2):
        match = _PROCESS.match(rest)
        if match:
            process += match.group(0).rstrip() + " "
            rest = rest[match.end() :]
        match = _LOGGER.match(rest)
        if not match:
            break
        logged = True
        rest = rest[match.end() :]
    place = text.find(at) if at and stamp is None else -1
    return Line(text, rest, process.rstrip(), logged, stamp, (text[: place if place > 0 else 200], year))


def _unwrap(text: str) -> t.Optional[t.Tuple[str, str]]:
    """The message and the time of a line of JSON; None where it isn't one of a log."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    message = next((data[key] for key in _MESSAGE_KEYS if isinstance(data.get(key), str)), None)
    trace = next((data[key] for key in _TRACE_KEYS if isinstance(data.get(key), str)), None)
    if message is None and trace is None:
        return None
    told = next((str(data[key]) for key in _TIME_KEYS if data.get(key)), "")
    return "\n".join(part for part in (message, trace) if part), told


def seconds(text: str, year: int) -> t.Optional[float]:
    """The last time that a text tells, in seconds since the epoch, or None."""
    found = None
    for match in _TIME.finditer(text):
        found = match
    if found is None:
        return None
    group = found.groupdict()
    month, day, clock, fraction = (group[k] or group[k + "2"] or group[k + "3"] for k in ("mon", "day", "time", "frac"))
    try:
        hour, minute, second = clock.split(":")
        moment = datetime(int(group["year"] or year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
    except ValueError:
        return None
    zone = group["zone"]
    if zone and zone != "Z":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
        moment = moment - offset if zone[0] == "+" else moment + offset
    return moment.timestamp() + (float("0." + fraction) if fraction else 0.0)


def moment(stamp: t.Any) -> t.Optional[float]:
    """Docker's time, "2026-11-29T10:00:00.123456789Z", in seconds since the epoch; None for its "0001-01-01T00:00:00Z", which stands for never."""
    told = str(stamp or "0001")
    return None if told.startswith("0001") else seconds(told, 1970)


def address(process: str) -> t.Optional[str]:
    """The address of another node that a process prefix names, or None."""
    match = _ADDRESS.search(process)
    return match.group(1) if match else None


def year_of(text: str) -> t.Optional[int]:
    """The year that a text tells, or None."""
    match = _TIME.search(text)
    return int(match.group("year")) if match and match.group("year") else None
