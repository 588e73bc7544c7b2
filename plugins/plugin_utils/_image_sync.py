# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What has to happen to a node so that it has the source's image; decided from what both nodes reported."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import (
    common_layers,
    differences,
    missing_bytes,
)

# What a node reports: the results of docker_image_transfer with operation=inspect, or {"failed": "a sentence"}.
View = t.Mapping[str, t.Any]


class Decision(t.NamedTuple):
    """What to do on one node.

    C(kind): C(none) (equal), C(tag) (the content is there under another name), C(fetch), or C(refuse);
    C(text): what would be done, or why not; C(common): layers that are there already; C(bytes): about what will come;
    C(known_id): the id of the image to tag.
    """

    kind: str
    text: str = ""
    common: int = 0
    bytes: int = 0
    known_id: str = ""


def source_problem(image: str, source: str, view: View) -> str | None:
    """One sentence when the source can't give the image, else None."""
    if "failed" in view:
        return f"{source} is the source of image {image} and failed: {view['failed']}"
    if not view["present"]:
        return (
            f"Image {image} is not on {source}, from where it should come to the others: "
            f"pull, build or load it there first (`docker image ls` on {source} lists what is there)."
        )
    return architecture_problem(image, source, view["identity"], view["daemon"])


def architecture_problem(image: str, host: str, identity: t.Mapping[str, t.Any], daemon: t.Mapping[str, t.Any]) -> str | None:
    """One sentence when an image is made for another kind of machine, else None."""
    wanted = f"{identity['os']}/{identity['architecture']}"
    found = f"{daemon['os']}/{daemon['architecture']}"
    if wanted == found:
        return None
    return f"Image {image} is for {wanted} and {host} is {found}: get the {found} build of the image (`docker pull --platform {found}`)."


def decide(image: str, source: str, source_view: View, host: str, view: View) -> Decision:
    """Decide for one node; the source itself needs nothing.

    :param view: what the node reported.
    """
    if "failed" in view:
        return Decision("refuse", str(view["failed"]))
    problem = source_problem(image, source, source_view)
    if problem is None and host != source:
        problem = architecture_problem(image, host, source_view["identity"], view["daemon"])
    if problem is not None:
        return Decision("refuse", problem)
    wanted = source_view["identity"]
    if host == source or (view["present"] and view["identity"]["digest"] == wanted["digest"]):
        return Decision("none")
    known = view["known"].get(wanted["digest"])
    if known is not None:
        return Decision("tag", f"tag {known[:19]}, which has the same content, as {image}", known_id=known)
    layers = len(wanted["layers"])
    common = common_layers(wanted["layers"], view["chains"])
    size = missing_bytes(source_view["size"], source_view["history"], layers, common)
    why = f"differs here in {', '.join(differences(wanted, view['identity']))}" if view["present"] else "missing here"
    text = f"fetch {image} from {source} ({why}): {layers - common} of {layers} layers, about {amount(size)}"
    return Decision("fetch", text, common=common, bytes=size)


def task_problem(hosts: t.Sequence[str], source: str, host: str, forks: int, throttle: int, run_once: bool) -> str | None:
    """One sentence when the task can't run on all its hosts at once, else None.

    The source serves while the others fetch, so each of them needs a process of the controller at the same time.
    """
    if source not in hosts:
        return (
            f"The source {source} does not take part: run this task on {source} and the other nodes together"
            f" (taking part: {', '.join(hosts)}; look at `hosts`, `--limit` and `serial`)."
        )
    if run_once and len(hosts) > 1:
        return "The task has `run_once`, but the image's source and all other nodes must run it together: remove it."
    slots = min(forks, throttle) if throttle else forks
    if slots < len(hosts):
        what = "`throttle` of this task" if throttle and throttle < forks else "`forks` of Ansible"
        return f"The task runs on {len(hosts)} nodes at once: set {what} to at least {len(hosts)} (it is {slots})."
    return None


def difference(image: str, before: View, identity: t.Mapping[str, t.Any]) -> dict[str, str]:
    """The diff of an image on a node: what is there, and what will be."""
    old = before["identity"] if before.get("present") else None
    return {
        "before": f"{image} {old['digest']}, {len(old['layers'])} layers\n" if old else f"{image} absent\n",
        "after": f"{image} {identity['digest']}, {len(identity['layers'])} layers\n",
    }


def rate(sent: int, seconds: float) -> float:
    """Megabytes (10**6 bytes) a second; 0 when nothing was sent."""
    return round(sent / 1e6 / seconds, 1) if sent and seconds > 0 else 0.0


def amount(size: float) -> str:
    """A number of bytes in the largest decimal unit that keeps it above 1."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
