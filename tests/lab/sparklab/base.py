# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's disk starts from: a base (a distribution, 40 s, once) and over it a layer (our files, made in no time).

Both are named by a hash of what they are made from, so a change makes a new one beside the old and no running node is
pulled from under its feet.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import typing as t
from pathlib import Path

from .inventory import USER, ensure_key
from .state import HERE, State
from .system import LabError, run, write

PACKAGES = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "sudo",
    "python3",
    "python3-apt",
    "python3-requests",
    "docker.io",
    "docker-buildx",
    "iptables",
    "nftables",
    "iproute2",
    "iputils-ping",
    "procps",
    "rsync",
    "ca-certificates",
    "ethtool",
    "zstd",
    "pigz",
    "kmod",
    "netcat-openbsd",
    "curl",
    "ibverbs-utils",
    "netplan.io",
]
EXTRA = {"debian": ["docker-cli"], "ubuntu": []}  # Ubuntu's docker.io has the client in it
MASKED = [
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "console-getty.service",
    "getty@tty1.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
]
# $1 is the new system. mmdebstrap copies the machine's own name and resolver; each node gets its own, and host keys.
HOOKS = [
    f'chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash {USER}',
    f'chroot "$1" usermod --append --groups docker,sudo {USER}',
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf; : > "$1"/etc/machine-id',
]
DAEMON = {
    "default-runtime": "lab",
    "runtimes": {"lab": {"path": "/usr/local/sbin/runc-lab"}, "nvidia": {"path": "/usr/local/sbin/runc-lab"}},
}
PROGRAMS = {"runc-lab": "usr/local/sbin", "lab-apply": "usr/local/sbin", "nvidia-smi": "usr/bin"}
Source = tuple[str, list[str], list[str]]


def apt_sources(text: str) -> list[Source]:
    """(address, suites, components) of every binary source in the text of an apt sources file, in both its formats."""
    found: list[Source] = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[[^]]*\]\s*)?(\S+)\s+(\S+)\s*(.*)", line)
        if match:
            found.append((match[1].rstrip("/"), [match[2]], match[3].split()))
    for block in re.split(r"\n\s*\n", text):
        fields = {key.lower(): value.split() for key, value in re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", block, re.M)}
        if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
            found += [(uri.rstrip("/"), fields.get("suites", []), fields.get("components", [])) for uri in fields.get("uris", [])]
    return found


def os_release(text: str) -> dict[str, str]:
    """The fields of /etc/os-release."""
    return dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.M))


def recipe(release: dict[str, str], sources: list[Source], mirror: str = "") -> dict[str, t.Any]:
    """What to build: Debian trixie on Debian (newer Docker than bookworm's), else the machine's own Ubuntu."""
    distribution = release.get("ID", "")
    if distribution == "debian":
        suite, components = "trixie", ["main"]
        mirrors = [uri for uri, _suites, _components in sources if uri.endswith("/debian")]
    elif distribution == "ubuntu":
        suite, components = release.get("VERSION_CODENAME", ""), ["main", "universe"]
        mirrors = [uri for uri, suites, _components in sources if suite in suites]
    else:
        raise LabError(
            f"The lab's nodes are built from Debian or Ubuntu packages; this is '{distribution}'. "
            "Use a Debian 12 or Ubuntu 24.04 machine (a virtual one will do)."
        )
    if not mirror and not mirrors:
        raise LabError("This machine's apt sources name no package mirror; set SPARKSTACK_LAB_MIRROR to its address.")
    return {"suite": suite, "components": components, "mirror": mirror or mirrors[0], "packages": sorted(PACKAGES + EXTRA[distribution]), "hooks": HOOKS}


def this_recipe(mirror: str) -> dict[str, t.Any]:
    """The recipe for this machine."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    sources = [source for file in files if file.suffix in (".list", ".sources") and file.is_file() for source in apt_sources(file.read_text())]
    return recipe(os_release(Path("/etc/os-release").read_text()), sources, mirror)


def digest(*parts: str) -> str:
    """A short name for what something is made from."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def base_folder(state: State, plan: dict[str, t.Any]) -> Path:
    """Where the base for this plan is or would be; the mirror's address does not matter for what comes out."""
    content = {key: value for key, value in plan.items() if key != "mirror"}
    return state.folder / "base" / digest(json.dumps(content, sort_keys=True))


def build_base(state: State, plan: dict[str, t.Any], say: t.Callable[[str], None]) -> Path:
    """Make the base unless it is there, and remove those of older plans."""
    target = base_folder(state, plan)
    if target.exists():
        return target
    say(f"Building the nodes' base system ({plan['suite']}, about a minute, once) ...")
    temp = target.with_name(target.name + ".part")
    shutil.rmtree(temp, ignore_errors=True)
    temp.parent.mkdir(parents=True, exist_ok=True)
    # when this tool is killed, the build must end with all its processes and mounts, not go on beside the next one
    run(
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--mode=root",
        f"--components={','.join(plan['components'])}",
        f"--include={','.join(plan['packages'])}",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--customize-hook={hook}" for hook in plan["hooks"]),
        plan["suite"],
        str(temp),
        plan["mirror"],
    )
    temp.rename(target)
    return target


def layer_inputs() -> dict[str, str]:
    """The files that the layer is made from."""
    return {path.name: path.read_text() for path in sorted((HERE / "files").iterdir()) if path.is_file()}


def build_layer(state: State) -> Path:
    """Make the folder with our own files that lies over the base, unless it is there."""
    public = ensure_key(state.key, "sparkstack-lab")
    inputs = layer_inputs()
    target = state.folder / "layer" / digest(public, Path(__file__).read_text(), json.dumps(inputs))
    if target.exists():
        return target
    temp = target.with_name(target.name + ".part")
    shutil.rmtree(temp, ignore_errors=True)
    for name, folder in PROGRAMS.items():
        write(temp / folder / name, inputs[name], 0o755)
    # dockerd offers '--gpus' when it finds this program at its start
    write(temp / "usr/bin/nvidia-container-runtime-hook", "#!/bin/sh\ncat >/dev/null\nexit 0\n", 0o755)
    write(temp / "usr/local/sbin/udevadm", "#!/bin/sh\nexit 0\n", 0o755)  # 'netplan apply' calls it; no udevd here
    write(temp / "etc/docker/daemon.json", json.dumps(DAEMON, indent=4) + "\n")
    # a namespace begins with '1 0': nobody but root may ping; a distribution with all its packages sets this
    write(temp / "etc/sysctl.d/50-lab.conf", "net.ipv4.ping_group_range = 0 2147483647\n")
    write(temp / "etc/sudoers.d/nvidia", f"{USER} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    units = temp / "etc/systemd/system"
    write(units / "lab-node.service", inputs["lab-node.service"])
    (units / "multi-user.target.wants").mkdir()
    (units / "multi-user.target.wants/lab-node.service").symlink_to("../lab-node.service")
    for unit in MASKED:
        (units / unit).symlink_to("/dev/null")
    write(temp / "home" / USER / ".ssh/authorized_keys", public + "\n", 0o600)
    (temp / "lab").mkdir()
    # a folder here hides the owner and mode that the same folder has in the base
    (temp / "etc/sudoers.d").chmod(0o750)
    (temp / "home" / USER / ".ssh").chmod(0o700)
    run("chown", "-R", "1000:1000", str(temp / "home" / USER))
    temp.rename(target)
    return target


def prune(state: State, keep: t.Iterable[Path]) -> None:
    """Remove bases and layers that nothing is made from any more; only while no node runs."""
    kept = set(keep)
    for folder in ("base", "layer"):
        for path in (state.folder / folder).glob("*"):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
