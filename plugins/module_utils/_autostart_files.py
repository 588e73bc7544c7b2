# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Where the agent of the autostart and its settings lie on a node, what they hold, and what is there now."""

from __future__ import annotations

import fcntl
import os
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import Data

PROGRAM = "usr/local/lib/sparkstack/autostart.pyz"
SETTINGS = "etc/sparkstack/autostart"
UNITS = "etc/systemd/system"
TEMPLATE = "sparkstack-autostart@.service"
MEMORY = "var/lib/sparkstack/autostart"
_INSTANT = 0.5
"""Seconds within which who only asks whether an agent runs has let go of its file."""
KIND = _unit_files.Kind("autostart", "tp_launch_autostart", PROGRAM, UNITS, TEMPLATE)

_UNIT = """\
# Written by sparkstack.inference: the next run writes it again.
[Unit]
Description=Starts the ranks of %i again after a reboot
After=docker.service network-online.target
Wants=network-online.target
ConditionPathExists=/etc/sparkstack/autostart/%i.json
StartLimitIntervalSec=600
StartLimitBurst=20

[Service]
Type=notify
ExecStart={python} -I -B /{program} /{settings}/%i.json
SyslogIdentifier=sparkstack-autostart
Restart=always
RestartSec=5
TimeoutStopSec=5
Nice=5
NoNewPrivileges=yes
ProtectSystem=strict
StateDirectory=sparkstack
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_SYS_PTRACE CAP_SYSLOG

[Install]
WantedBy=multi-user.target
"""


def unit(deployment: str) -> str:
    """The unit's name; :raises ValueError: for a deployment whose name can't be one of a file."""
    return KIND.unit(deployment)


def settings(deployment: str) -> str:
    """The path of a deployment's settings, under the root."""
    unit(deployment)
    return "{0}/{1}.json".format(SETTINGS, deployment)


def memory(deployment: str) -> str:
    """The path of what the agent remembers, under the root."""
    unit(deployment)
    return "{0}/{1}.json".format(MEMORY, deployment)


def held(deployment: str) -> str:
    """The path of the file that a running agent holds, under the root."""
    return memory(deployment)[: -len(".json")] + ".lock"


def link(deployment: str) -> str:
    """The path of the link by which systemd starts the unit at boot, under the root."""
    return "{0}/multi-user.target.wants/{1}".format(UNITS, unit(deployment))


def unit_text() -> str:
    """The unit, the same for all deployments and on all nodes."""
    return _UNIT.format(python=_unit_files.PYTHON, program=PROGRAM, settings=SETTINGS)


def plain(config: t.Mapping[str, t.Any]) -> Data:
    """Settings as they may be shown and compared: the token stands as a hash, which it can't be guessed from, for it is random."""
    shown = {key: value for key, value in config.items() if key != "token"}
    return dict(shown, token_hash=_unit_files.digest(str(config.get("token", "")).encode())[:16])


def hold(deployment: str, root: str = "/") -> t.Optional[int]:
    """The descriptor that tells that this deployment's agent runs, for as long as it is open; None when another one runs."""
    path = os.path.join(root, held(deployment))
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _INSTANT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
        time.sleep(_INSTANT / 20)


def runs(deployment: str, root: str = "/") -> bool:
    """Whether this deployment's agent runs."""
    try:
        descriptor = os.open(os.path.join(root, held(deployment)), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def installed(root: str = "/") -> t.Dict[str, Data]:
    """What is there of the autostart, by deployment: C(settings) (as :func:`plain`), C(program) and C(unit) (digests), C(enabled), C(runs)."""
    found: t.Dict[str, Data] = {}
    try:
        names = sorted(os.listdir(os.path.join(root, SETTINGS)))
    except OSError:
        return found
    shared = {"program": _unit_files.digest_of(os.path.join(root, PROGRAM)), "unit": _unit_files.digest_of(os.path.join(root, KIND.unit_file))}
    for name in names:
        deployment = name[: -len(".json")]
        if not name.endswith(".json") or not _unit_files.valid(deployment):
            continue
        config = _unit_files.read(os.path.join(root, SETTINGS, name)) or {}
        found[deployment] = dict(
            shared,
            settings=plain(config),
            enabled=os.path.lexists(os.path.join(root, link(deployment))),
            runs=runs(deployment, root),
        )
    return found
