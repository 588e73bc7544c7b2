# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""One node's part of a support bundle: its container's log and inspection, what its memory guard told, and what the system says."""

from __future__ import annotations

import collections
import json
import os
import re
import time
import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_files, _guard_told, _secrets, _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, demultiplex, unbroken
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL

Run = t.Callable[[t.List[str]], str]
"""Runs a command and returns its output, or a line that says why there is none."""

FIRST, LAST = 4 << 20, 16 << 20
"""Bytes of a long log that are kept of its beginning, where the start-up stands, and of its end, where the failure does."""
_TAIL_LINES = 200000

# Docker's time before each message, fixed in length: "2026-11-29T22:42:04.123456789Z ".
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) ")
_KERNEL = re.compile(
    r"out of memory|oom|killed process|memory cgroup|NVRM|Xid|nvidia|mlx5|infiniband|rdma|link (?:is )?(?:down|up)|hung task|blocked for more|segfault|"
    r"I/O error|nvme|EXT4-fs (?:error|warning)|AER:|thermal|Linux version|Command line",
    re.IGNORECASE,
)
_KERNEL_LINES = 2000
_JOURNAL_LINES = 200
"""Of a guard's journal; it writes two or three a load."""


def long_log(api: DockerAPI, name: str, tty: bool, first: int = FIRST, last: int = LAST) -> bytes:
    """A container's log with Docker's times; of a long one, the beginning and the end.

    :param first: bytes of the beginning. :param last: bytes of the end.
    :raises DockerError: when the daemon can't give it, as with a log driver that can't be read.
    """
    head: t.List[bytes] = []
    size, until, cut = 0, b"", False
    for line, stamp in _messages(api, name, tty, "all"):
        if size >= first:
            cut = True
            break
        head.append(line)
        size, until = size + len(line), stamp or until
    if not cut:
        return b"".join(head)
    tail: t.Deque[bytes] = collections.deque()
    size, gap = 0, True
    for line, stamp in _messages(api, name, tty, str(_TAIL_LINES)):
        if stamp and stamp <= until:
            gap = False
            continue
        tail.append(line)
        size += len(line)
        while size > last:
            size, gap = size - len(tail.popleft()), True
    return b"".join(head) + (b"\n[.. a part of the log is left out here ..]\n" if gap else b"") + b"".join(tail)


def _messages(api: DockerAPI, name: str, tty: bool, tail: str) -> t.Iterator[t.Tuple[bytes, bytes]]:
    """The log's messages, each with its time apart; the parts of a line of more than 16 KiB are joined, and have the first one's."""
    query = {"stdout": "1", "stderr": "1", "timestamps": "1", "tail": tail}
    whole = True
    with unbroken(), api.request("GET", "/containers/{0}/logs".format(quote(name, safe="")), query) as response:
        parts = iter(response.readline, b"") if tty else (payload for _stream, payload in demultiplex(response.read))
        for message in parts:
            match = _STAMP.match(message)
            yield message if whole or not match else message[match.end() :], match.group(0) if match else b""
            whole = message.endswith(b"\n")


def inspection(told: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Docker's inspection with the values of secret variables replaced."""
    config = dict(told.get("Config") or {})
    config["Env"] = _secrets.environment(config.get("Env") or [])
    return dict(told, Config=config)


def secrets(told: t.Mapping[str, t.Any], root: str = "/") -> t.List[str]:
    """The secrets that a container was given: in its environment, on its command line, in the file that the collection keeps for it."""
    config = told.get("Config") or {}
    command = [str(word) for word in [told.get("Path") or "", *(told.get("Args") or [])]]
    found = _secrets.of_environment(config.get("Env") or []) + _secrets.of_command(command)
    name = os.path.basename(str(told.get("Name") or ""))
    return found + _secrets.of_file(text(os.path.join(root, _secrets.FOLDER.lstrip("/"), name + ".env")))


def docker(api: DockerAPI) -> t.Dict[str, t.Any]:
    """The daemon in short; :raises DockerError: when it doesn't answer."""
    info, version = api.get("/info"), api.get("/version")
    keys = "ServerVersion Driver CgroupDriver CgroupVersion DefaultRuntime OperatingSystem KernelVersion Architecture NCPU MemTotal Warnings".split()
    short: t.Dict[str, t.Any] = {key: info.get(key) for key in keys}
    short["Runtimes"] = sorted(info.get("Runtimes") or {})
    short["Components"] = {part.get("Name"): part.get("Version") for part in version.get("Components") or []}
    listed = api.get("/containers/json", {"all": "true"})
    short["Containers"] = ["{0} {1} ({2})".format(",".join(entry.get("Names") or []), entry.get("Image"), entry.get("Status")) for entry in listed]
    return short


def kernel(messages: str) -> str:
    """The kernel's messages that can have to do with a failed launch, the newest ones.

    :param messages: the output of C(dmesg).
    """
    return "\n".join([line for line in messages.splitlines() if _KERNEL.search(line)][-_KERNEL_LINES:]) + "\n"


def models(told: t.Mapping[str, t.Any], run: Run) -> str:
    """The folders of the node that the container has, with their file systems and, where a model lies there, its files."""
    shown = []
    for mount in told.get("Mounts") or []:
        source = str(mount.get("Source") or "")
        shown.append("{0} at {1} ({2})".format(source, mount.get("Destination"), "read-write" if mount.get("RW") else "read-only"))
        if os.path.isdir(source):
            shown.append(run(["df", "-h", source]))
            shown.append(run(["findmnt", "--target", source]))
    for folder in model_folders(told):
        shown += ["", folder + ":"] + _files(folder)
    return "\n".join(shown) + "\n"


def model_folders(told: t.Mapping[str, t.Any]) -> t.List[str]:
    """The node's folders that the container's command line names, by its own paths: the model, as a rule."""
    words = [word for part in [told.get("Path") or "", *(told.get("Args") or [])] for word in re.split(r"[\s=\"']+", str(part))]
    found = []
    for mount in told.get("Mounts") or []:
        inside, source = str(mount.get("Destination") or "").rstrip("/"), str(mount.get("Source") or "").rstrip("/")
        for word in words:
            if inside and (word.rstrip("/") == inside or word.startswith(inside + "/")):
                folder = source + word[len(inside) :].rstrip("/")
                if os.path.isdir(folder) and folder not in found:
                    found.append(folder)
    return found


def _files(folder: str) -> t.List[str]:
    """Names and sizes of what a folder holds."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return [str(error)]
    lines = []
    for name in names[:500]:
        path, link = os.path.join(folder, name), ""
        try:
            link = " -> " + os.readlink(path) if os.path.islink(path) else ""
            size = "{0:>15,}".format(os.stat(path).st_size)
        except OSError as error:
            size = error.strerror or "?"
        lines.append("  {0}  {1}{2}".format(size, name, link))
    return lines


def guard(told: t.Optional[t.Mapping[str, t.Any]], container: str, run: Run, root: str = "/") -> t.Dict[str, str]:
    """What the memory guard of the container's deployment has told on this node, with the whole curve, and its journal, by file.

    :param told: Docker's inspection; of a container that is gone the guard's own word says whose it was. :param container: its name.
    """
    labels = ((told or {}).get("Config") or {}).get("Labels") or {}
    deployment = str(labels.get(LABEL + "deployment") or "") if told is not None else _whose(container, root)
    if not _guard_files.valid(deployment):
        return {}
    path = os.path.join(root, _guard_files.told(deployment))
    try:
        page = _guard_told.page(_unit_files.read(path) or {})
    except (KeyError, TypeError, ValueError):
        # It has told nothing, or somebody has had a hand in it: the file goes along as it is.
        page = ""
    unit = _guard_files.unit(deployment)
    journal = run(["journalctl", "--unit", unit, "--utc", "--output", "short-iso", "--lines", str(_JOURNAL_LINES), "--no-pager"])
    # "-- No entries --": there was no guard, and of nothing there is no need to tell.
    journal = "" if journal.strip() == "-- No entries --" else journal
    return {"guard.json": text(path), "guard.txt": "\n".join(part for part in (page, journal and "{0}:\n{1}".format(unit, journal)) if part)}


def _whose(container: str, root: str) -> str:
    """The deployment of which a guard on this node has stopped a container of that name, or nothing."""
    folder = os.path.join(root, _guard_files.FOLDER)
    for name in sorted(os.listdir(folder)) if container and os.path.isdir(folder) else []:
        found = (_unit_files.read(os.path.join(folder, name)) or {}) if name.endswith(".json") else {}
        if found.get("name") == container:
            return str(found.get("deployment") or "")
    return ""


def system(run: Run, root: str = "/") -> t.Dict[str, str]:
    """What the system says of itself, by file."""
    uname = os.uname()
    about = [
        "kernel: {0} {1} {2}".format(uname.release, uname.version, uname.machine),
        "node's clock: {0} UTC".format(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())),
        "up for: {0} s".format(text(os.path.join(root, "proc/uptime")).split(" ")[0]),
        "load: " + text(os.path.join(root, "proc/loadavg")).strip(),
        "",
        text(os.path.join(root, "etc/os-release")),
    ]
    smi = run(["nvidia-smi"])
    return {
        "system.txt": "\n".join(about),
        "meminfo.txt": text(os.path.join(root, "proc/meminfo")),
        "network.txt": "\n".join(run(command) for command in (["ip", "address"], ["ip", "route"], ["ip", "-statistics", "link"])),
        "nvidia-smi.txt": smi,
        "kernel.txt": kernel(run(["dmesg", "--ctime"])),
    }


def collect(api: DockerAPI, container: str, run: Run, root: str = "/") -> t.Tuple[t.Dict[str, bytes], t.List[str]]:
    """All that the node has to tell.

    :param container: its name; nothing where there is none to look at.
    :returns: the files by name, without the secrets that are known here, and these secrets, since other nodes' files may hold them too.
    """
    files: t.Dict[str, str] = system(run, root)
    log, known = b"", t.cast("t.List[str]", [])
    told: t.Optional[t.Dict[str, t.Any]] = None
    try:
        files["docker.json"] = json.dumps(docker(api), indent=2) + "\n"
        told = api.container(container) if container else None
        if told is not None:
            known = secrets(told, root)
            files["container.json"] = json.dumps(inspection(told), indent=2) + "\n"
            files["model.txt"] = models(told, run)
            log = long_log(api, told["Id"], bool(told["Config"].get("Tty")))
        elif container:
            files["problems.txt"] = "There is no container {0}.\n".format(container)
    except DockerError as error:
        files["problems.txt"] = "{0}\n".format(error)
    files.update(guard(told, container, run, root))
    scrubber = _secrets.Scrubber(known)
    found = {name: scrubber.text(content).encode("utf-8", "surrogateescape") for name, content in files.items() if content}
    if log:
        found["container.log"] = scrubber.data(log)
    return found, known
