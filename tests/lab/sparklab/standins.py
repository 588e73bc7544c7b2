# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a GB10 node that this machine lacks, as files; 'lab set' gives them other values.

Keys:  gpu.FIELD, gpu.N.FIELD (N from 0)   an answer of nvidia-smi, by its query name (gpu.driver is short for driver_version)
       gpu.count, gpu.apps, gpu.error      cards; 'pid:MiB:name' separated by ';'; text that nvidia-smi fails with
       meminfo.FIELD                       a line of /proc/meminfo, in kB, or with a unit such as 119G
       sysctl.vm.X, sysctl.net.core.X      settings which a node may write, but which the machine would share or refuse
       rdma, rdma.PATH                     false takes the RDMA tree away; PATH below /sys/class/infiniband/rocep1s0f0
       link.speed                          /sys/class/net/enp1s0f0np0/speed, in Mbit/s
       infiniband_dev                      true makes /dev/infiniband
An empty value ('KEY=') goes back to the default.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
from pathlib import Path

from .network import FABRIC_CARD, mac
from .state import Settings, fabric_address
from .system import LabError, rewrite

HCA = "rocep1s0f0"
# Settings that a deployment may want to change. A namespace has no vm.* of its own: a node that wrote them would change
# the machine, and the limits of net.core are read-only in any but the first namespace.
SYSCTLS = [
    "vm.swappiness",
    "vm.drop_caches",
    "vm.compact_memory",
    "vm.min_free_kbytes",
    "vm.overcommit_memory",
    "vm.overcommit_ratio",
    "vm.vfs_cache_pressure",
    "vm.dirty_ratio",
    "vm.dirty_background_ratio",
    "vm.watermark_scale_factor",
    "vm.max_map_count",
    "vm.nr_hugepages",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.rmem_default",
    "net.core.wmem_default",
    "net.core.netdev_max_backlog",
]
KEYS = re.compile(
    r"gpu\.(\d+\.)?[a-z][a-z0-9_.]*|meminfo\.[A-Za-z0-9_()]+|sysctl\.[a-z0-9_.]+|rdma(\.[a-z0-9_/]+)?|"
    r"link\.speed|infiniband_dev"
)


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """KEY=VALUE arguments as a dictionary; LabError for a key that nothing reads."""
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise LabError(f"'{pair}' is no KEY=VALUE.")
        if not KEYS.fullmatch(key) or key.startswith("sysctl.") and key[7:] not in SYSCTLS or ".." in key:
            raise LabError(
                f"'{key}' is no stand-in; known are gpu.*, meminfo.*, sysctl.* ({', '.join(SYSCTLS)}), "
                "rdma, rdma.*, link.speed and infiniband_dev (see tests/lab/README.md)."
            )
        if key == "gpu.driver":
            key = "gpu.driver_version"
        values[key] = value
    return values


def truth(text: str) -> bool:
    """Whether a value means yes."""
    return text.lower() in ("1", "true", "yes", "on")


def kilobytes(text: str) -> int:
    """kB of '127600748', '127600748 kB' or '119G'."""
    match = re.fullmatch(r"(\d+)\s*(|kB|K|M|G|T)", text)
    if not match:
        raise LabError(f"'{text}' is no amount of memory; write kB (127600748) or a size (119G).")
    return int(match[1]) * {"": 1, "kB": 1, "K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}[match[2]]


def meminfo_text(real: str, fields: dict[str, str]) -> str:
    """The machine's /proc/meminfo with some lines replaced, and lines appended that it does not have (CmaTotal)."""
    left = {key: kilobytes(value) for key, value in fields.items()}
    lines = []
    for line in real.splitlines():
        key = line.split(":")[0]
        lines.append(f"{key + ':':<16}{left.pop(key):>8} kB" if key in left else line)
    lines += [f"{key + ':':<16}{value:>8} kB" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def gid_of(address: str) -> str:
    """An IPv6 address, or an IPv4 one mapped into IPv6, as sysfs writes a GID: eight groups with all their zeros."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv4Address):
        parsed = ipaddress.IPv6Address(f"::ffff:{parsed}")
    # Not .exploded: since Python 3.13 that ends in 192.168.200.11 for a mapped address.
    return ":".join(f"{parsed.packed[i]:02x}{parsed.packed[i + 1]:02x}" for i in range(0, 16, 2))


def link_local(hardware: str) -> str:
    """fe80::... from a hardware address, with its seventh bit turned over."""
    octets = [int(part, 16) for part in hardware.split(":")]
    octets[0] ^= 2
    octets[3:3] = [0xFF, 0xFE]
    return "fe80::" + ":".join(f"{octets[i]:02x}{octets[i + 1]:02x}" for i in range(0, 8, 2))


def rdma_files(name: str, values: dict[str, str], carrier: bool) -> dict[str, str]:
    """The files below /sys/class/infiniband/, with their one line each. The kernel has no active_mtu there."""
    gids = [gid_of(link_local(mac(name, 1)))] * 2 + [gid_of(fabric_address(name))] * 2
    files = {
        "fw_ver": "28.45.4028",
        "node_type": "1: CA",
        "hca_type": "MT4129",
        "node_desc": f"{name} {HCA}",
        "board_id": "NVD0000000087",
        "ports/1/link_layer": "Ethernet",
        "ports/1/rate": "200 Gb/sec (4X HDR)",
        "ports/1/state": "4: ACTIVE" if carrier else "1: DOWN",
        "ports/1/phys_state": "5: LinkUp" if carrier else "3: Disabled",
        f"device/net/{FABRIC_CARD}/address": mac(name, 1),
        f"device/net/{FABRIC_CARD}/dev_port": "0",
    }
    for index, gid in enumerate(gids):
        files[f"ports/1/gids/{index}"] = gid
        files[f"ports/1/gid_attrs/types/{index}"] = "RoCE v2" if index % 2 else "IB/RoCE v1"
        files[f"ports/1/gid_attrs/ndevs/{index}"] = FABRIC_CARD
    for key, value in values.items():
        if key.startswith("rdma."):
            files[key[5:]] = value
    return {f"{HCA}/{path}": text + "\n" for path, text in files.items()}


def write_tree(folder: Path, files: dict[str, str]) -> None:
    """Make a folder hold exactly these files; those that stay keep their inode, as a node may have them bound."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.rglob("*"), reverse=True):
        relative = str(path.relative_to(folder))
        if path.is_file() and relative not in files:
            path.unlink()
        elif path.is_dir() and not any(file.startswith(relative + "/") for file in files):
            shutil.rmtree(path)
    for relative, text in files.items():
        rewrite(folder / relative, text)


def bound_files(values: dict[str, str], boot: bool, have: Path, proc: Path = Path("/proc")) -> dict[str, str]:
    """The files that are bound over /proc and /sys. A sysctl that the node wrote is kept until it boots again."""
    files = {f"sys/devices/virtual/net/{FABRIC_CARD}/speed": values.get("link.speed", "200000") + "\n"}
    for key in SYSCTLS:
        relative = "sys/" + key.replace(".", "/")
        if not (proc / relative).exists():
            continue
        if f"sysctl.{key}" in values:
            files[f"proc/{relative}"] = values[f"sysctl.{key}"] + "\n"
        elif not boot and (have / "proc" / relative).exists():
            files[f"proc/{relative}"] = (have / "proc" / relative).read_text()
        else:
            try:
                files[f"proc/{relative}"] = (proc / relative).read_text()
            except OSError:  # drop_caches and compact_memory can only be written
                files[f"proc/{relative}"] = "0\n"
    memory = {key[8:]: value for key, value in values.items() if key.startswith("meminfo.")}
    if memory:
        files["proc/meminfo"] = meminfo_text((proc / "meminfo").read_text(), memory)
    return files


def lay(folder: Path, name: str, settings: Settings, carrier: bool, boot: bool = False) -> None:
    """Write a node's /lab; the node itself sees a change at once, except what lab-apply has to mount."""
    values = settings.values
    write_tree(folder / "files", bound_files(values, boot, folder / "files"))
    write_tree(folder / "infiniband", rdma_files(name, values, carrier))
    (folder / "class" / "infiniband").mkdir(parents=True, exist_ok=True)
    for flag, on in (("rdma", truth(values.get("rdma", "true"))), ("infiniband_dev", truth(values.get("infiniband_dev", "false")))):
        if on:
            (folder / flag).touch()
        else:
            (folder / flag).unlink(missing_ok=True)
    rewrite(folder / "gpu.json", json.dumps({key[4:]: value for key, value in values.items() if key.startswith("gpu.")}, indent=1) + "\n")
