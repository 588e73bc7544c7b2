# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is on the nodes and the controller that a deploy could leave behind, or lose."""

from __future__ import annotations

import concurrent.futures
import json
import shlex
import time

import play

from .deploying import HISTORY
from .engines import NODES

# Run on a node by its own Python. A container's processes are told by their group: '9:memory:/sparklab/spark2/docker/4f1c...'.
_LOOK = """
import json, os, re, subprocess  # sparklab-look
def said(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout
def read(pid, name):
    try:
        return open("/proc/%s/%s" % (pid, name), errors="replace").read()
    except OSError:
        return ""
def inside(pid):
    return bool(re.search("/docker[/-][0-9a-f]{12}", read(pid, "cgroup")))
processes = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = read(pid, "cmdline").replace(chr(0), " ").strip()
    if "sparklab-look" in words or inside(pid):
        continue
    # A module whose text came on stdin has no argument at all.
    if re.search("vllm|sglang|EngineCore|AnsiballZ|docker (run|load|save)", words + " " + read(pid, "comm"), re.I) or re.fullmatch(r"\\S*python[0-9.]*", words):
        processes.append(words)
listeners = set()
for line in said("ss", "-Hltnp").splitlines():
    port = line.split()[3].rpartition(":")[2]
    holders = re.findall('"([^"]*)",pid=([0-9]+)', line)
    # containerd has another one after each start.
    where = " listens on port " + port if int(port) < 32768 else " listens on a port of its own"
    listeners |= {name + where for name, pid in holders if not inside(pid)}
files = said("find", "/var/lib/sparkstack", "/etc/sparkstack", "-type", "f").split()
print(json.dumps({
    "containers": said("docker", "ps", "-a", "--format", "{{.Names}}").split(),
    "processes": processes,
    "listeners": sorted(listeners),
    "locks": [path for path in files if path.endswith("/lock.json")],
    "temporary": [path for path in files if path.endswith(".new")],
    "launches": [path for path in files if "/launches/" in path],
    "images": [name for name in said("docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split() if "<none>" not in name],
    "models": said("find", "/srv/models", "-type", "f", "-printf", "%p %s\\\\n").splitlines(),
}))
"""

Look = dict[str, dict[str, list[str]]]
KEPT_LAUNCHES = 20


def look() -> Look:
    """Of each node: containers, processes outside of them, listeners, locks, halves of files, launches, images and models."""
    command = f"python3 -c {shlex.quote(_LOOK)}"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return dict(zip(NODES, (json.loads(text) for text in pool.map(lambda node: play.node(node, command), NODES)), strict=True))


def stray(before: Look, ranks: bool = True, seconds: float = 10) -> list[str]:
    """What is there and should not be, and what is gone, each in words; what only needs a moment to end gets these seconds.

    :param before: of the serving deployment, before anything was done. :param ranks: whether the deployment's own containers are to be there.
    """
    deadline = time.monotonic() + seconds
    while (found := problems(before, look(), ranks)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found + [f"the controller has half a file: {path}" for path in HISTORY.rglob("*.new")]


def problems(before: Look, after: Look, ranks: bool = True) -> list[str]:
    """What differs between two looks and should not."""
    found = []
    for node in NODES:
        old, new = before[node], after[node]
        wanted = {play.RANKS[node]} if ranks else set()
        found += [f"{node} has a container {name}" for name in sorted(set(new["containers"]) - wanted - set(old["containers"]))]
        found += [f"{node} has no container {name}" for name in sorted(wanted - set(new["containers"]))]
        if not ranks:
            found += [f"{node} still has {name}" for name in new["containers"] if name == play.RANKS[node]]
        for key, words in (("processes", "a process"), ("listeners", "a listener"), ("locks", "a lock"), ("temporary", "half a file")):
            found += [f"{node} has {words}: {item}" for item in sorted(set(new[key]) - set(old[key]))]
        found += [f"{node} has a lock: {path}" for path in new["locks"] if f"/{play.DEPLOYMENT}/" in path and path in old["locks"]]
        for key, words in (("images", "image"), ("models", "file of a model")):
            found += [f"{node} has lost the {words} {item}" for item in sorted(set(old[key]) - set(new[key]))]
        lost = set(old["launches"]) - set(new["launches"])
        if lost and len([path for path in new["launches"] if f"/{play.DEPLOYMENT}/" in path]) < KEPT_LAUNCHES:
            found.append(f"{node} has lost the record of {len(lost)} launches")
    return found
