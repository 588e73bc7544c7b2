# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What the node's netplan files say of which interface. Only what a plan needs leaves the node: the files can hold the keys of a Wi-Fi."""

from __future__ import annotations

import fnmatch
import os
import re
import typing as t

FOLDERS = ("lib/netplan", "etc/netplan", "run/netplan")
OURS = "etc/netplan/60-sparkstack-fabric.yaml"
"""Behind what the distribution and an installer write (00 to 50), before what NetworkManager does (90-NM-*.yaml)."""
_PHYSICAL = ("ethernets", "wifis", "modems")
_SHOWN = ("addresses", "mtu", "dhcp4", "dhcp6", "renderer", "gateway4", "routes", "nameservers")

Data = t.Dict[str, t.Any]
Load = t.Callable[[str], t.Any]


class NetplanError(Exception):
    """A file can't be read; the message says which and why."""


class Interface(t.NamedTuple):
    """What a definition may match an interface by."""

    name: str
    mac: str
    driver: str


def files(root: str) -> t.List[str]:
    """The netplan files, as paths below the root. One in C(/run) hides that of the same name in C(/etc), and that the one in C(/lib).

    They are read in the order of their names, whatever their folder. Source: netplan(5).
    """
    found: t.Dict[str, str] = {}
    for folder in FOLDERS:
        try:
            names = os.listdir(os.path.join(root, folder))
        except OSError:
            continue
        found.update({name: f"{folder}/{name}" for name in names if name.endswith(".yaml")})
    return [found[name] for name in sorted(found)]


def definitions(root: str, interfaces: t.Sequence[Interface], load: Load) -> t.List[Data]:
    """All definitions of all files that have to do with these interfaces.

    :param load: reads YAML out of a text.
    :returns: mappings with C(file) (a path that begins with a slash), C(section), C(id), C(netdevs) (those it matches),
      C(pattern) (it can match others as well) and C(settings) (without anything secret).
    :raises NetplanError: for a file that is no netplan file.
    """
    found = []
    for below in files(root):
        for section, name, settings in _entries(root, below, load):
            netdevs = [entry.name for entry in interfaces if _concerns(section, name, settings, entry)]
            if netdevs:
                shown = {key: settings[key] for key in _SHOWN if key in settings}
                pattern = bool(settings.get("match")) and re.search(r"[*?\[]", str(settings["match"].get("name") or "*")) is not None
                found.append({"file": "/" + below, "section": section, "id": name, "netdevs": netdevs, "pattern": pattern, "settings": shown})
    return found


def others(root: str, below: str, netdevs: t.Collection[str], interfaces: t.Sequence[Interface], load: Load) -> t.List[str]:
    """What a file defines besides these interfaces, by the names of its definitions."""
    chosen = [entry for entry in interfaces if entry.name in netdevs]
    return [name for section, name, settings in _entries(root, below, load) if not any(_concerns(section, name, settings, entry) for entry in chosen)]


def _entries(root: str, below: str, load: Load) -> t.Iterator[t.Tuple[str, str, Data]]:
    path = os.path.join(root, below)
    try:
        with open(path, encoding="utf-8") as stream:
            data = load(stream.read())
    except OSError as error:
        raise NetplanError(f"/{below} can't be read: {error.strerror}. Run this as root (become).") from None
    except Exception as error:  # what YAML's reader raises is its own
        raise NetplanError("/{} is no YAML: {}. Correct it, 'netplan generate' says more.".format(below, " ".join(str(error).split())[:200])) from None
    network = (data or {}).get("network") if isinstance(data, (dict, type(None))) else None
    for section, entries in (network or {}).items() if isinstance(network, dict) else ():
        for name, settings in entries.items() if isinstance(entries, dict) else ():
            yield str(section), str(name), settings if isinstance(settings, dict) else {}


def _concerns(section: str, name: str, settings: Data, interface: Interface) -> bool:
    """Whether a definition configures an interface, or makes it part of something else (a bond, a bridge)."""
    if section not in _PHYSICAL:
        return interface.name in [str(entry) for entry in settings.get("interfaces") or []]
    match = settings.get("match")
    if not isinstance(match, dict):
        return name == interface.name
    if settings.get("set-name") == interface.name:
        return True
    wanted = [
        ("name", interface.name, fnmatch.fnmatchcase),
        ("macaddress", interface.mac, lambda own, text: own.lower() == text.lower()),
        ("driver", interface.driver, fnmatch.fnmatchcase),
    ]
    texts = {key: match[key] if isinstance(match[key], list) else [match[key]] for key, _own, _fits in wanted if key in match}
    return bool(texts) and all(any(fits(own, str(text)) for text in texts[key]) for key, own, fits in wanted if key in texts)
