# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Where the memory guard and its settings lie on a node: all of it in C(/run), so that nothing outlives a reboot."""

from __future__ import annotations

from ansible_collections.sparkstack.inference.plugins.module_utils import _unit_files

FOLDER = "run/sparkstack/guard"
PROGRAM = FOLDER + "/guard.pyz"
UNITS = "run/systemd/system"
TEMPLATE = "sparkstack-guard@.service"
KIND = _unit_files.Kind("the memory guard", "tp_launch_memory_guard", PROGRAM, UNITS, TEMPLATE)

# A guard that waits for the processor or for a page of its own is of no use: it comes first for the one, is never chosen by the
# kernel's killer, and locks its pages (MemoryMin would not do: it holds only where all groups above have it too).
_UNIT = """\
# Written by sparkstack.inference: the next run writes it again.
[Unit]
Description=Guards this node's memory while its rank of %i loads

[Service]
Type=notify
ExecStart={python} -I -B /{program} /{folder}/%i.json
SyslogIdentifier=sparkstack-guard
Restart=on-failure
RestartSec=1
TimeoutStartSec=30
TimeoutStopSec=5
Nice=-10
OOMScoreAdjust=-1000
LimitMEMLOCK=infinity
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=/{folder}
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX
CapabilityBoundingSet=CAP_KILL CAP_IPC_LOCK CAP_DAC_READ_SEARCH CAP_SYS_PTRACE
"""


def valid(deployment: str) -> bool:
    """It can be a deployment's name, and that of a file."""
    return _unit_files.valid(deployment) and not deployment.endswith(".told")


def unit(deployment: str) -> str:
    """The unit's name; :raises ValueError: for a deployment whose name can't be one of a file."""
    if not valid(deployment):
        raise _unit_files.refused(deployment)
    return KIND.unit(deployment)


def settings(deployment: str) -> str:
    """The path of a deployment's settings, under the root."""
    return "{0}/{1}.json".format(FOLDER, deployment)


def told(deployment: str) -> str:
    """The path of what the guard has told, under the root."""
    return "{0}/{1}.told.json".format(FOLDER, deployment)


def unit_text() -> str:
    """The unit, the same for all deployments and on all nodes."""
    return _UNIT.format(python=_unit_files.PYTHON, program=PROGRAM, folder=FOLDER)
