# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cables: one namespace (the panel) holds both switches; each node has a namespace with its two network cards.

Nodes hang on the panel's bridges 'mgmt' and 'fabric' by the ports m<i> and f<i>. A cable is cut at the panel's side, so
that the node sees what it would see on a real machine: its card up, no carrier, and nothing it can do about it. With two
nodes the fabric is one cable: a cut, or a node without power, takes the carrier from both ends. The panel is apart from
the machine's own namespace, so that its firewall (Docker's 'FORWARD DROP', say) has no part in it.
"""

from __future__ import annotations

import re
from pathlib import Path

from .state import Settings, fabric_address, management_address, number
from .system import LabError, run

PANEL = "sparklab"
UPLINK = "lab-mgmt"
CONTROLLER = "10.77.0.1/24"
GATEWAY = "10.77.0.254"
MGMT_CARD = "enP7s7"
FABRIC_CARD = "enp1s0f0np0"
NETNS = Path("/run/netns")


def mac(name: str, card: int) -> str:
    """A node's card always has the same address, so that neighbours and GIDs survive its reboot."""
    return f"02:53:50:4b:{card:02x}:{number(name):02x}"


def port_states(count: int, powered: set[str], cut: set[str]) -> dict[str, bool]:
    """For each powered node, whether its fabric port has a carrier."""
    good = powered - cut
    if count == 2:  # one cable between two nodes: both ends or none
        return {name: len(good) == 2 for name in powered}
    return {name: name in good for name in powered}


def _batch(namespace: str, *commands: str) -> None:
    run("ip", "-n", namespace, "-batch", "-", input="\n".join(commands) + "\n")


def ensure_panel() -> None:
    """Make the panel, its two bridges and the controller's cable, unless they are there."""
    if (NETNS / PANEL).exists() and Path(f"/sys/class/net/{UPLINK}").exists():
        return
    remove_panel()
    run("ip", "netns", "add", PANEL)
    _batch(
        PANEL,
        "link set lo up",
        "link add mgmt type bridge mcast_snooping 0",
        "link add fabric mtu 9000 type bridge mcast_snooping 0",
        f"addr add {GATEWAY}/24 dev mgmt",
        "link set mgmt up",
        "link set fabric up",
        # a node asks for the world outside: it is told 'no route' at once and need not wait for a timeout
        "route add unreachable default",
    )
    run("ip", "netns", "exec", PANEL, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    run("ip", "link", "add", UPLINK, "type", "veth", "peer", "name", "uplink", "netns", PANEL)
    _batch(PANEL, "link set uplink master mgmt up")
    run("ip", "addr", "add", CONTROLLER, "dev", UPLINK)
    run("ip", "link", "set", UPLINK, "up")


def remove_panel() -> None:
    """Take away the panel and the controller's cable."""
    run("ip", "link", "del", UPLINK, check=False)
    if (NETNS / PANEL).exists():
        # 'ip netns del' frees nothing while any process holds the namespace: delete the links by name first
        run("ip", "-n", PANEL, "link", "del", "mgmt", check=False)
        run("ip", "-n", PANEL, "link", "del", "fabric", check=False)
        run("ip", "netns", "del", PANEL, check=False)


def plug(name: str) -> None:
    """Give a node new cards in a new namespace: as after a real boot, no address, rule or net.* setting is left over."""
    unplug(name)
    i = number(name)
    run("ip", "netns", "add", name)
    _batch(
        PANEL,
        f"link add m{i} type veth peer name {MGMT_CARD} netns {name}",
        f"link add f{i} mtu 9000 type veth peer name {FABRIC_CARD} mtu 9000 netns {name}",
        f"link set m{i} master mgmt up",
        f"link set f{i} master fabric",
    )
    _batch(
        name,
        "link set lo up",
        f"link set {MGMT_CARD} address {mac(name, 0)} up",
        f"link set {FABRIC_CARD} address {mac(name, 1)} up",
        f"addr add {management_address(name)}/24 dev {MGMT_CARD}",
        f"addr add {fabric_address(name)}/24 dev {FABRIC_CARD}",
        f"route add default via {GATEWAY}",
    )


def unplug(name: str) -> None:
    """Take a node's cards and namespace away."""
    i = number(name)
    if (NETNS / PANEL).exists():
        for port in (f"m{i}", f"f{i}"):
            run("ip", "-n", PANEL, "link", "del", port, check=False)
    if (NETNS / name).exists():
        run("ip", "netns", "del", name, check=False)


def plugged() -> set[str]:
    """The nodes that have a namespace now."""
    return {path.name for path in NETNS.glob("spark*") if re.fullmatch(r"spark[1-9][0-9]?", path.name)}


def set_ports(states: dict[str, bool]) -> None:
    """Switch the fabric ports on or off."""
    for name, up in states.items():
        run("ip", "-n", PANEL, "link", "set", f"f{number(name)}", "up" if up else "down")


def set_management(name: str, up: bool) -> None:
    """Plug the node's management cable in, or pull it; a boot plugs it in again."""
    run("ip", "-n", PANEL, "link", "set", f"m{number(name)}", "up" if up else "down")


def shape(name: str, settings: Settings) -> None:
    """Make loss (frames that never reach the node) and rate (both directions) what the settings say."""
    port = f"f{number(name)}"
    rules = f"table bridge loss{port}\ndelete table bridge loss{port}\n"
    if settings.loss:
        # Less than 100 of 100 is no condition, and nft takes none that always holds.
        some = f"numgen random mod 100 < {settings.loss} " if settings.loss < 100 else ""
        rules += f'table bridge loss{port} {{ chain forward {{ type filter hook forward priority 0; oifname "{port}" {some}drop; }}; }}\n'
    run("ip", "netns", "exec", PANEL, "nft", "-f", "-", input=rules)
    for namespace, card in ((PANEL, port), (name, FABRIC_CARD)):
        if settings.rate:
            run("tc", "-n", namespace, "qdisc", "replace", "dev", card, "root", "tbf", "rate", settings.rate, "burst", "256k", "latency", "50ms")
        elif "tbf" in run("tc", "-n", namespace, "qdisc", "show", "dev", card):
            run("tc", "-n", namespace, "qdisc", "del", "dev", card, "root")


def check_rate(rate: str) -> str:
    """A rate as tc takes it ('200mbit', '10gbit'), '' for none ('0' or 'off')."""
    if rate in ("0", "off", "none"):
        return ""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[kmg]?bit", rate):
        raise LabError(f"'{rate}' is no rate; write it like 200mbit or 10gbit, or 'off'.")
    return rate
