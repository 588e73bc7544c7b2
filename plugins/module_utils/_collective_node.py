# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A node's part of a collective proof: what it has and remembers, and the run of its container, which is gone afterwards whatever happens."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import http.client
import json
import os
import socket
import time
import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils import _collective_program, _sockets
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, demultiplex
from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer, text
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import identity
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import write

FOLDER = "/var/lib/sparkstack/collective"
"""The folder on a node with what each deployment's ranks have proved."""
_MOST = 1 << 20
"""Bytes of output that are kept: 200 lines of NCCL for each GPU are usual."""
_GRACE = 15.0
"""Seconds over the program's own time after which its container is removed: Docker itself needs some to start it."""
_GONE = 10.0
"""Seconds in which Docker removes a container that has ended."""


def source() -> str:
    """The text of the program that runs in the image; also out of the archive that Ansible brings modules in."""
    loader: t.Any = _collective_program.__loader__
    return str(loader.get_source(_collective_program.__name__))


def look(api: DockerAPI, image: str, name: str, port: t.Optional[int], netdevs: t.Sequence[str], root: str = "/") -> t.Dict[str, t.Any]:
    """What the node has; nothing is changed.

    :param name: of the proof's container. :param port: the rendezvous port where this node is the head, else None.
    :param netdevs: interfaces whose state is a part of the proof, and RDMA devices, which stand for theirs.
    :returns: C(identity) (of the image's content; None where it is not here), C(boot), C(links), C(program) (a hash), C(listener) (who has the port,
        as C(_sockets.listeners) tells it, with C(name) of a container), C(foreign) (the image of a container of that name that is none of the proof's).
    :raises DockerError: when the daemon doesn't answer.
    """
    inspection = api.image(image)
    there = api.container(name)
    leftover = bool(there and LABEL + "collective" in (there["Config"].get("Labels") or {}))
    found = _sockets.settled([port], os.path.join(root, "proc")) if port else []
    if found and leftover and there and found[0]["container"] == there["Id"]:
        # Of a run whose controller is gone: it is removed before the next one starts.
        found = []
    if found and found[0]["container"]:
        found[0]["name"] = ((api.container(found[0]["container"]) or {}).get("Name") or "").lstrip("/") or None
    return {
        "identity": identity(inspection)["digest"] if inspection else None,
        "boot": text(os.path.join(root, "proc/sys/kernel/random/boot_id")).strip(),
        "links": {name: _link(os.path.join(root, "sys/class/net", name)) for name in _interfaces(netdevs, root)},
        "program": hashlib.sha256(source().encode()).hexdigest()[:16],
        "listener": found[0] if found else None,
        "foreign": there["Config"].get("Image") if there and not leftover else None,
    }


def _interfaces(names: t.Sequence[str], root: str) -> t.List[str]:
    """Interfaces by their names, and those of RDMA devices whose names begin so, as NCCL_IB_HCA takes them."""
    paths = {name: glob.glob(os.path.join(root, "sys/class/infiniband", glob.escape(name) + "*", "device/net/*")) for name in names}
    return sorted({found for name in names for found in (map(os.path.basename, paths[name]) if paths[name] else [name])})


def _link(folder: str) -> t.Dict[str, t.Any]:
    """What changes with a cable that was drawn, or with another MTU. Source: Linux, Documentation/ABI/testing/sysfs-class-net."""
    return {name: integer(os.path.join(folder, name)) for name in ("carrier_changes", "mtu", "speed")}


def run(api: DockerAPI, body: t.Mapping[str, t.Any], name: str, parameters: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Run the program in a container of its own, and see that the container is gone afterwards.

    :param body: the request for the container, less its command.
    :returns: C(output), C(problem) (Docker's own word, where it could not be run; else empty), C(seconds).

    Docker removes the container when it ends (AutoRemove), and the program ends by itself when its time is over: also when nobody reads any more.
    """
    began = time.monotonic()
    limit = float(parameters["timeout"]) + _GRACE
    wanted = dict(body, Entrypoint=["python3", "-c", source()], Cmd=[json.dumps(parameters, sort_keys=True)], Tty=False)
    output = b""
    problem = ""
    patient = DockerAPI(api.socket_path, limit)
    container = ""
    try:
        _remove(api, name)
        with api.request("POST", "/containers/create", {"name": name}, wanted) as response:
            container = "/containers/" + quote(json.loads(response.read().decode("utf-8"))["Id"])
        # Before the start: of what has ended and is gone there is no log.
        with patient.request("POST", container + "/attach", {"stream": "1", "stdout": "1", "stderr": "1"}) as stream:
            api.request("POST", container + "/start").close()
            output = _read(stream, began + limit)
    except DockerError as error:
        problem = str(error)
    finally:
        if container:
            over = problem or time.monotonic() - began > limit
            _gone(api, container, 0 if over else _GONE)
    return {"output": output.decode("utf-8", "replace"), "problem": problem, "seconds": round(time.monotonic() - began, 3)}


def _read(stream: http.client.HTTPResponse, until: float) -> bytes:
    """What the container says to its end, or to a time; of too much, the beginning and the end."""
    parts: t.List[bytes] = []
    size = 0
    try:
        for _stream, payload in demultiplex(stream.read):
            parts.append(payload)
            size += len(payload)
            while size > 2 * _MOST:
                # The beginning has NCCL's set-up, the end has the results.
                size -= len(parts.pop(len(parts) // 2))
            if time.monotonic() > until:
                break
    except (OSError, socket.timeout, http.client.HTTPException):
        # Silent for all of its time, or cut off: what it has said counts.
        pass
    return b"".join(parts)


def _remove(api: DockerAPI, name: str) -> None:
    """Remove what an earlier proof has left. :raises DockerError: where somebody else's container has the name."""
    there = api.container(name)
    if not there:
        return
    if LABEL + "collective" not in (there["Config"].get("Labels") or {}):
        raise DockerError("The name {} belongs to a container of {}: remove or rename it first.".format(name, there["Config"].get("Image")))
    _gone(api, "/containers/" + quote(there["Id"]), 0)


def _gone(api: DockerAPI, container: str, wait: float) -> None:
    """Wait until Docker has removed a container that has ended, and remove it by force when it has not. :param wait: seconds."""
    deadline = time.monotonic() + wait
    forced = False
    # Nothing can be done where Docker does not answer.
    with contextlib.suppress(DockerError):
        while api.find(container + "/json") and time.monotonic() < deadline + _GONE:
            if not forced and time.monotonic() >= deadline:
                forced = True
                # 404 and 409: Docker has removed it, or is about to ("removal of container 4f1c is already in progress"): then its name is not free yet.
                with contextlib.suppress(DockerError):
                    api.request("DELETE", container, {"force": "true", "v": "true"}).close()
                continue
            time.sleep(0.1)


def kept(deployment: str, root: str = "/") -> t.Optional[t.Dict[str, t.Any]]:
    """What the last proof of a deployment showed, as it was kept; None where there is none, or where it is damaged."""
    try:
        with open(path(deployment, root), encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("at"), (int, float)) and found.get("key") else None


def keep(deployment: str, proof: t.Mapping[str, t.Any], root: str = "/") -> None:
    """Keep a proof, in one step; an empty one is forgotten. :raises OSError: on a full disk, or without root's rights."""
    target = path(deployment, root)
    if not proof:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        return
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    write(target, json.dumps(proof, sort_keys=True), 0o600)


def path(deployment: str, root: str = "/") -> str:
    """Where a deployment's proof is kept."""
    return os.path.join(root, FOLDER.lstrip("/"), f"{deployment}.json")
