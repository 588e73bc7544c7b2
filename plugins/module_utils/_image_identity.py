# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What makes two images the same, whichever store their daemons keep them in.

An image's C(Id) says nothing across stores: with the classic graph drivers it is the digest of the configuration
(C(sha256:0ef645...)), with the containerd image store the digest of the manifest (C(sha256:eee762...)), of one and the
same image. C(RepoDigests), C(Parent), C(Size) and the times differ in the same way. The diff ids of the layers
(C(RootFS.Layers)) are the same everywhere, and so is what a container gets from the configuration.
Source: Docker 26.1 with both stores, image moved by save and load.
"""

from __future__ import annotations

import hashlib
import json
import typing as t

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What Docker calls the machines that the kernel (C(uname -m)) calls so."""
# The fields of the configuration that reach a container; the last three are Docker's own additions to the OCI's.
CONFIG_FIELDS = (
    "User",
    "ExposedPorts",
    "Env",
    "Entrypoint",
    "Cmd",
    "Volumes",
    "WorkingDir",
    "Labels",
    "StopSignal",
    "Healthcheck",
    "OnBuild",
    "Shell",
)


def identity(inspection: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Reduce an image's inspection to what is the same in every store.

    :param inspection: the answer of C(GET /images/NAME/json).
    :returns: C(architecture), C(os), C(layers) (diff ids, base first), C(config), and C(digest), a hash of these.
    """
    raw = inspection.get("Config") or {}
    config = {}
    for field in CONFIG_FIELDS:
        value = raw.get(field)
        # A store may say null, "", [] or {} for what isn't set, and "/" for the working folder that isn't.
        if value and not (field == "WorkingDir" and value == "/"):
            config[field] = value
    result: t.Dict[str, t.Any] = {
        "architecture": inspection.get("Architecture") or "",
        "os": inspection.get("Os") or "",
        "layers": list((inspection.get("RootFS") or {}).get("Layers") or []),
        "config": config,
    }
    text = json.dumps(result, sort_keys=True, separators=(",", ":"))
    result["digest"] = "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()
    return result


def differences(wanted: t.Mapping[str, t.Any], found: t.Mapping[str, t.Any]) -> t.List[str]:
    """Name what differs between two identities, in words for a sentence; empty when they are the same."""
    names = [field for field in ("architecture", "os", "layers") if wanted[field] != found[field]]
    fields = sorted(set(wanted["config"]) | set(found["config"]))
    return names + [field for field in fields if wanted["config"].get(field) != found["config"].get(field)]


def chain_ids(layers: t.Iterable[str]) -> t.List[str]:
    """The chain id of every layer: it names the layer together with all that lie under it.

    A daemon looks up by this whether it has a layer already; the same diff id over another base is another layer.
    Source: OCI image specification, "Layer ChainID".
    """
    chain: t.List[str] = []
    for layer in layers:
        if chain:
            layer = "sha256:" + hashlib.sha256(f"{chain[-1]} {layer}".encode("ascii")).hexdigest()
        chain.append(layer)
    return chain


def usable_chains(layers: t.Sequence[str], held: t.Optional[t.Container[str]]) -> t.List[str]:
    """The chain ids of those layers, from the base upwards, that another image may be built on without sending them.

    :param held: the diff ids of those that the store has; None for all. The containerd store takes an archive that lacks a layer which it doesn't have
        without complaint, and C(docker save) of the loaded image then lacks it too, without an error (Docker 26.1).
    """
    count = 0
    while count < len(layers) and (held is None or layers[count] in held):
        count += 1
    return chain_ids(layers[:count])


def common_layers(layers: t.Sequence[str], known_chains: t.Iterable[str]) -> int:
    """How many of an image's layers, from the base upwards, a daemon has already.

    :param known_chains: the chain ids of all layers of all images of that daemon.
    """
    known = set(known_chains)
    count = 0
    for chain in chain_ids(layers):
        if chain not in known:
            break
        count += 1
    return count


def needless(layers: t.Sequence[str], common: int) -> t.List[str]:
    """The diff ids that need not be sent to a daemon which has the lowest C(common) layers.

    A layer that occurs once more further up, an empty one say, is needed there.
    """
    return sorted(set(layers[:common]) - set(layers[common:]))


def missing_bytes(size: int, history: t.Sequence[int], layers: int, common: int) -> int:
    """Estimate the bytes of the layers from C(common) upwards.

    :param size: the image's size in bytes.
    :param history: the sizes in C(GET /images/NAME/history) in bytes, newest first as Docker gives them. Steps without
        a layer (C(ENV), C(CMD)) stand there with size 0, and nothing tells them from a layer with no bytes.
    :returns: the estimate, or the image's size where the steps can't be matched with the layers.
    """
    steps = list(reversed(history))
    if len(steps) != layers:
        steps = [step for step in steps if step > 0]
    if common == 0 or len(steps) != layers:
        return size
    return sum(steps[common:])


def name_problem(image: str) -> t.Optional[str]:
    """One sentence when an image isn't given by name and tag, else None.

    Only a name and tag survives C(docker save) and C(docker load): a digest of a registry is lost, and an id is
    another one in another store.
    """
    if "@" in image or image.startswith("sha256:"):
        return f"Image {image} is given by digest or id, which another Docker does not keep: give it by name and tag."
    if not image.strip() or image != image.strip():
        return "The image's name is empty or has blanks around it: give it by name and tag."
    return None


def with_tag(image: str) -> t.Tuple[str, str]:
    """Split a name into repository and tag; the tag is C(latest) when none is given.

    A colon before the last slash belongs to the registry's port: C(registry:5000/name).
    """
    head, slash, last = image.rpartition("/")
    name, colon, tag = last.partition(":")
    return head + slash + name, tag if colon else "latest"
