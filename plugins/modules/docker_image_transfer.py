#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: docker_image_transfer
short_description: One node's part in bringing a Docker image to all nodes
version_added: 1.0.0
description:
  - Looks at an image, serves it to other nodes, or fetches it from another node.
  - M(sparkstack.inference.docker_image_sync) calls this module on every node, and it is of little use without.
  - The image goes from daemon to daemon without a file in between, without the layers which the fetching daemon has.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: partial
    details:
      - Only O(operation=inspect) and O(operation=tag) can run in check mode.
  diff_mode:
    support: none
    details:
      - M(sparkstack.inference.docker_image_sync) tells the difference.
  idempotent:
    support: partial
    details:
      - O(operation=fetch) fetches what it is told to. What is needed is for the caller to decide.
options:
  operation:
    description:
      - V(inspect) looks at the image and at the daemon.
      - V(serve) serves the image once to each of O(peers) and then ends.
      - V(fetch) fetches the image from O(source_address) and loads it.
      - V(tag) gives the image O(known_id) the name O(image).
    type: str
    required: true
    choices: [inspect, serve, fetch, tag]
  image:
    description:
      - The image's name and tag.
    type: str
    required: true
  docker_host:
    description:
      - The unix socket of the Docker daemon.
      - Its path alone will do too.
    type: str
    aliases: [docker_socket]
    default: unix:///var/run/docker.sock
  address:
    description:
      - This node's address on the fabric. Nothing listens on and nothing connects from another one.
    type: str
    required: true
  source_address:
    description:
      - The source's address on the fabric.
    type: str
  port:
    description:
      - The port on which the source listens.
    type: int
  token:
    description:
      - The one-time token which both ends must hold. It never crosses the fabric itself.
    type: str
  peers:
    description:
      - The addresses to serve.
    type: list
    elements: str
    default: []
  layers:
    description:
      - The diff ids of the layers that make up the source's image, base first.
    type: list
    elements: str
    default: []
  common:
    description:
      - How many of O(layers), from the base upwards, this node's daemon has already.
    type: int
    default: 0
  known_id:
    description:
      - The id of an image of this node.
    type: str
  connect_timeout:
    description:
      - Seconds until the connection must stand.
    type: int
    default: 30
  stall_timeout:
    description:
      - Seconds without a sign of the other node after which it counts as gone.
    type: int
    default: 60
  timeout:
    description:
      - Seconds after which all ends.
    type: int
    default: 3600
seealso:
  - module: sparkstack.inference.docker_image_sync
"""

EXAMPLES = r"""
---
- name: See whether an image is there, and what it is made of
  sparkstack.inference.docker_image_transfer:
    operation: inspect
    image: lab/engine:1
    address: 192.168.200.11
  register: image
"""

RETURN = r"""
present:
  description: Whether the image is there.
  returned: O(operation=inspect), O(operation=fetch) and O(operation=tag)
  type: bool
identity:
  description:
    - What makes the image the same in every store, with the keys C(architecture), C(os), C(layers), C(config) and
      C(digest).
  returned: when the image is there
  type: dict
id:
  description: The image's id, as this daemon has it.
  returned: when the image is there
  type: str
size:
  description: The image's size in bytes, as this daemon has it.
  returned: when the image is there
  type: int
history:
  description: The sizes of the image's build steps in bytes, newest first.
  returned: when the image is there
  type: list
  elements: int
daemon:
  description: The daemon's C(architecture), C(os) and C(version).
  returned: O(operation=inspect)
  type: dict
known:
  description: The id of each image of this node by the digest of its identity.
  returned: O(operation=inspect)
  type: dict
chains:
  description: The chain ids of all layers of this node's images on which another image can be built.
  returned: O(operation=inspect)
  type: list
  elements: str
free_port:
  description: A port that is free on O(address), or V(0) when the node does not have this address.
  returned: O(operation=inspect)
  type: int
bytes:
  description: Bytes that crossed the fabric.
  returned: O(operation=serve) and O(operation=fetch)
  type: int
seconds:
  description: How long it took.
  returned: O(operation=serve) and O(operation=fetch)
  type: float
whole:
  description: Whether the daemon refused the archive without its known layers, so that all layers had to be sent.
  returned: O(operation=fetch)
  type: bool
served:
  description: How it went with each of O(peers), with the keys C(address), C(bytes_sent), C(seconds) and C(error).
  returned: O(operation=serve)
  type: list
  elements: dict
"""

import os
import time
import typing as t
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import (
    DockerAPI,
    DockerError,
    DockerUnreachable,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import (
    identity,
    needless,
    usable_chains,
    with_tag,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._image_stream import (
    ArchiveError,
    blob_filter,
    load_image,
    read_image,
    thin_out,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import (
    Limits,
    Request,
    TransferError,
    free_port,
    receive,
    serve,
)


class ImageTransfer:
    """The operations, on the daemon of this node."""

    def __init__(self, params: t.Mapping[str, t.Any]) -> None:
        self.params = params
        self.image: str = params["image"]
        self.limits = Limits(params["connect_timeout"], params["stall_timeout"], params["timeout"])
        # Writing or loading an archive of 20 GB, the daemon may be silent for minutes.
        self.docker = DockerAPI(params["docker_host"], timeout=params["timeout"])

    def view(self) -> t.Dict[str, t.Any]:
        """The image, as far as it is there."""
        found = self.docker.image(self.image)
        if found is None:
            return {"present": False}
        history = self.docker.get("/images/{}/history".format(quote(found["Id"], safe=":")))
        return {
            "present": True,
            "identity": identity(found),
            "id": found["Id"],
            "size": found.get("Size", 0),
            "history": [step.get("Size", 0) for step in history],
        }

    def inspect(self) -> t.Dict[str, t.Any]:
        version = self.docker.get("/version")
        has_blob = self._content()
        known: t.Dict[str, str] = {}
        chains: t.Set[str] = set()
        for entry in self.docker.get("/images/json"):
            inspection = self.docker.image(entry["Id"])
            if inspection is None:  # Removed since it was listed.
                continue
            mark = identity(inspection)
            known[mark["digest"]] = entry["Id"]
            chains.update(usable_chains(mark["layers"], has_blob))
        try:
            port = free_port(self.params["address"])
        except OSError:
            port = 0
        daemon = {"architecture": version["Arch"], "os": version["Os"], "version": version["Version"]}
        return dict(self.view(), daemon=daemon, known=known, chains=sorted(chains), free_port=port)

    def _content(self) -> t.Callable[[str], bool]:
        """Tells whether the daemon has a layer by its diff id.

        The graph drivers know every layer by it. The containerd store doesn't say, so that its folder is looked at; where
        this user may not do that, all layers count as missing.
        """
        info = self.docker.get("/info")
        if not any("containerd.snapshotter" in value for _key, value in info.get("DriverStatus") or []):
            return lambda digest: True
        roots = ("/var/lib/containerd", os.path.join(info.get("DockerRootDir", "/var/lib/docker"), "containerd/daemon"))
        folders = [os.path.join(root, "io.containerd.content.v1.content/blobs") for root in roots]
        return lambda digest: any(os.path.exists(os.path.join(folder, *digest.split(":"))) for folder in folders)

    def tag(self) -> t.Dict[str, t.Any]:
        repository, tag = with_tag(self.image)
        path = "/images/{}/tag".format(quote(self.params["known_id"], safe=":"))
        self.docker.request("POST", path, {"repo": repository, "tag": tag}).close()
        return self.view()

    def serve(self) -> t.Dict[str, t.Any]:
        def produce(request: Request) -> t.Iterator[bytes]:
            return thin_out(read_image(self.docker, self.image), blob_filter(request.get("leave_out") or []))

        served = serve(
            self.params["address"],
            self.params["port"],
            self.params["token"],
            self.params["peers"],
            produce,
            self.limits,
        )
        return {"served": [result._asdict() for result in served], "bytes": sum(result.bytes_sent for result in served)}

    def fetch(self) -> t.Dict[str, t.Any]:
        leave_out = needless(self.params["layers"], self.params["common"])
        whole = not leave_out
        try:
            received = self._fetch(leave_out)
        except DockerUnreachable:
            raise
        except DockerError:
            if whole:
                raise
            # The daemon knows these layers but can't use them, as when a registry's compressed ones are in its store.
            whole = True
            received = self._fetch([])
        return dict(self.view(), bytes=received, whole=whole and bool(leave_out))

    def _fetch(self, leave_out: t.List[str]) -> int:
        return receive(
            self.params["source_address"],
            self.params["port"],
            self.params["address"],
            self.params["token"],
            {"leave_out": leave_out},
            lambda archive: load_image(self.docker, archive),
            self.limits,
        )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "operation": {"type": "str", "required": True, "choices": ["inspect", "serve", "fetch", "tag"]},
            "image": {"type": "str", "required": True},
            "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
            "address": {"type": "str", "required": True},
            "source_address": {"type": "str"},
            "port": {"type": "int"},
            "token": {"type": "str", "no_log": True},
            "peers": {"type": "list", "elements": "str", "default": []},
            "layers": {"type": "list", "elements": "str", "default": []},
            "common": {"type": "int", "default": 0},
            "known_id": {"type": "str"},
            "connect_timeout": {"type": "int", "default": 30},
            "stall_timeout": {"type": "int", "default": 60},
            "timeout": {"type": "int", "default": 3600},
        },
        required_if=[
            ("operation", "serve", ("port", "token", "peers")),
            ("operation", "fetch", ("port", "token", "source_address", "layers")),
            ("operation", "tag", ("known_id",)),
        ],
        supports_check_mode=True,
    )
    operation: str = module.params["operation"]
    if module.check_mode and operation != "inspect":
        module.exit_json(changed=operation != "serve")
    transfer = ImageTransfer(module.params)
    started = time.monotonic()
    try:
        result = getattr(transfer, operation)()
    except DockerUnreachable as error:
        remedy = "start it with `systemctl start docker`, or let this task run with `become`"
        module.fail_json(msg=f"{error} Look whether Docker runs: {remedy}.")
    except DockerError as error:
        module.fail_json(msg=f"Docker says: {error}")
    except (ArchiveError, TransferError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=operation in ("fetch", "tag"), seconds=round(time.monotonic() - started, 3), **result)


if __name__ == "__main__":
    main()
