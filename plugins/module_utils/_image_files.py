# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Small files out of an image, by a container that is created, never started, and removed.

Source: the Docker Engine API reference, ContainerCreate, ContainerArchive and ContainerDelete, version 1.41 and later.
"""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import tarfile
import time
import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, unbroken
from ansible_collections.sparkstack.inference.plugins.module_utils._image_environment import (
    SYSTEM_FILE,
    network_variables,
    parse_conf,
    parse_environment,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL

_MOST = 1 << 20
"""Bytes of a file that are read; a configuration is a few lines."""
_LINKS = 5
FILES = LABEL + "files"
"""The label of such a container."""
_OLD = 600
"""Seconds after which one is nobody's any more: it is needed for as long as three small files take."""


class ImageFiles:
    """The files of an image; within C(with), as the container is removed at its end."""

    def __init__(self, api: DockerAPI, image: str) -> None:
        self._api, self._image, self._container = api, image, ""

    def __enter__(self) -> ImageFiles:
        """:raises DockerError: when the image isn't there or no container can be made of it."""
        self._sweep()
        wanted = {"Image": self._image, "Entrypoint": ["/"], "Cmd": [], "Labels": {FILES: self._image}, "HostConfig": {"NetworkMode": "none"}}
        with unbroken(), self._api.request("POST", "/containers/create", body=wanted) as response:
            self._container = "/containers/" + quote(json.loads(response.read().decode())["Id"])
        return self

    def __exit__(self, *_error: object) -> None:
        self._api.request("DELETE", self._container, {"force": "true", "v": "true"}).close()

    def _sweep(self) -> None:
        """Remove what a module has left that was killed."""
        filters = {"label": [FILES], "status": ["created"]}
        for entry in self._api.get("/containers/json", {"all": "true", "filters": json.dumps(filters)}):
            if time.time() - entry["Created"] > _OLD:
                # Another one may have come first.
                with contextlib.suppress(DockerError):
                    self._api.request("DELETE", "/containers/" + quote(entry["Id"]), {"force": "true", "v": "true"}).close()

    def text(self, path: str) -> t.Optional[str]:
        """A file's text; None when there is none. :raises DockerError: when the daemon fails."""
        for _link in range(_LINKS):
            found = self._entry(path)
            if found is None or isinstance(found, bytes):
                return None if found is None else found.decode("utf-8", "replace")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), found))
        return None

    def _entry(self, path: str) -> t.Union[None, bytes, str]:
        """A file's bytes, or where a link points: Docker gives a link as such."""
        try:
            with unbroken(), self._api.request("GET", self._container + "/archive", {"path": path}) as response:
                data = response.read(_MOST + 4096)
        except DockerError as error:
            if error.status == 404:
                return None
            raise
        with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(data)) as archive:
            entry = archive.next()
            if entry is not None and entry.issym():
                return entry.linkname
            if entry is not None and entry.isfile() and entry.size <= _MOST:
                handle = archive.extractfile(entry)
                return handle.read() if handle else None
        return None


def baked(api: DockerAPI, inspection: t.Mapping[str, t.Any], image: str) -> t.Dict[str, t.Any]:
    """What an image brings of the network's variables: C(environment) and C(files), see :func:`_image_environment.judge`.

    :param inspection: the image's. :raises DockerError: when the daemon fails.
    """
    config = inspection.get("Config") or {}
    environment = parse_environment(config.get("Env"))
    with ImageFiles(api, image) as files:
        own = environment.get("NCCL_CONF_FILE")
        if own:
            first = posixpath.join("/", own)
        else:
            home = environment.get("HOME") or home_of(str(config.get("User") or ""), files.text("/etc/passwd") or "")
            first = posixpath.join(home, ".nccl.conf")
        texts = [(path, files.text(path)) for path in dict.fromkeys([first, SYSTEM_FILE])]
    return {
        "environment": network_variables(environment),
        "files": [{"path": path, "values": parse_conf(text)} for path, text in texts if text is not None],
    }


def home_of(user: str, passwd: str) -> str:
    """The home folder of a container's user, as Docker sets C(HOME): by C(/etc/passwd), else the root folder.

    :param user: C(Config.User): a name or number, with a group or not; empty for root.
    """
    name = user.partition(":")[0] or "0"
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and name in (fields[0], fields[2]):
            return fields[5] or "/"
    return "/root" if name in ("0", "root") else "/"
