# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import typing as t
from pathlib import Path

from . import checks, hinder, keeper, network, transfer, trouble
from .cgroups import detect
from .fleet import Lab, describe, say
from .inventory import ssh_argv
from .state import MAX_NODES, State
from .system import LabError, locked, parse_size


def print_status(lab: Lab, as_json: bool) -> int:
    """0 when every node is up and answers."""
    rows = lab.status()
    if as_json:
        print(json.dumps({"state": str(lab.state.folder), "inventory": str(lab.state.inventory), "nodes": rows}, indent=1))
    for row in rows if not as_json else []:
        text = "ready" if row["ready"] else {"on": "running, does not answer"}.get(row["power"], row["power"])
        extra = [describe(lab.state.settings(row["name"]))] + [f"{key}={value}" for key, value in row["values"].items()]
        extra += [f"{row['oom_kills']} killed by its memory limit"] * bool(row["oom_kills"])
        say(
            f"{row['name']}  {row['address']}  {text}  {row['memory_used'] >> 20} of {row['memory_limit'] >> 20} MiB"
            + "".join(f", {word}" for word in extra if word)
        )
    return 0 if all(row["ready"] for row in rows) else 1


def parser() -> argparse.ArgumentParser:
    """All words and their arguments."""
    top = argparse.ArgumentParser(prog="lab", description="Real nodes on this machine: systemd, sshd, Docker, two networks.")
    words = top.add_subparsers(dest="word", required=True, metavar="WORD")

    def word(name: str, text: str, *arguments: tuple[str, dict[str, t.Any]]) -> None:
        sub = words.add_parser(name, help=text, description=text)
        for argument, options in arguments:
            sub.add_argument(argument, **options)

    node: tuple[str, dict[str, t.Any]] = ("node", {"metavar": "NODE"})
    word("deps", "install the programs that the lab needs")
    word("base", "build the nodes' base system, unless it is there")
    word(
        "up",
        "make all nodes run and answer",
        ("--nodes", {"type": int, "metavar": "N", "help": "how many (default: as before, at first 2)"}),
        ("--memory", {"metavar": "SIZE", "help": "limit of each node (default: as before, at first 6G)"}),
    )
    word("down", "switch everything off; disks and settings stay")
    word("status", "what runs (code 0 when all is ready)", ("--json", {"action": "store_true"}))
    word("inventory", "print the path of the Ansible inventory")
    word("reboot", "reboot in good order and wait", node)
    word("power-cut", "pull the plug", node)
    word("start", "switch on and wait", node)
    word("stop", "switch off in good order", node)
    word("freeze", "hang: everything in the node stands still", node)
    word("thaw", "end a freeze", node)
    word("cut", "cut the node's fabric cable", node)
    word("heal", "end a cut", node)
    word("loss", "lose this share of the frames to the node on the fabric (0: none)", node, ("percent", {"type": int}))
    word("rate", "limit the node's fabric cable, such as 200mbit (off: no limit)", node, ("rate", {}))
    word("isolate", "pull the node's management cable: ssh hangs (until 'rejoin', or a boot)", node)
    word("rejoin", "end that", node)
    word("disk", "limit what each container reads from disk, in bytes a second, such as 2M (off: no limit)", node, ("speed", {}))
    word("clock", "put the node's clock wrong by this many seconds (0: right); dockerd's stays right", node, ("seconds", {"type": int}))
    word(
        "fault",
        f"a wrong set-up, until 'mend' or a boot. {'; '.join(trouble.described())}",
        node,
        ("kind", {"metavar": "KIND", "choices": list(trouble.KINDS)}),
        ("value", {"metavar": "VALUE", "nargs": "?", "default": ""}),
    )
    word("mend", "take the node's faults of 'fault' away", node)
    word("memory", "change the node's memory limit, such as 1500M", node, ("size", {}))
    word("shell", "ssh into the node", node, ("command", {"nargs": argparse.REMAINDER, "metavar": "CMD"}))
    word("set", "give stand-ins (nvidia-smi, meminfo, RDMA, ...) other values", node, ("pairs", {"nargs": "+", "metavar": "KEY=VALUE"}))
    word("put-image", "load a 'docker save' archive of this machine into the node's Docker", node, ("archive", {"type": Path}))
    word("put-dir", "make a folder in the node equal to one of this machine", node, ("source", {"type": Path}), ("destination", {}))
    word("reset", "make one node or all factory-new", ("node", {"metavar": "NODE", "nargs": "?"}))
    word("purge", "take down and remove everything, the base system too")
    return top


def change(lab: Lab, options: argparse.Namespace) -> None:
    """The words that change something; the caller holds the lab's lock."""
    word, name = options.word, getattr(options, "node", None)
    if word == "up":
        if options.nodes is not None and not 1 <= options.nodes <= MAX_NODES:
            raise LabError(f"--nodes must be from 1 to {MAX_NODES}.")
        lab.up(options.nodes, options.memory)
    elif word in ("down", "purge", "base"):
        {"down": lab.down, "purge": lab.purge, "base": lab.build}[word]()
    elif word == "reset":
        lab.mine()
        lab.reset(name)
    else:
        lab.mine()
        change_node(lab, options, word, str(name))


def change_node(lab: Lab, options: argparse.Namespace, word: str, name: str) -> None:
    """The words for one node."""
    node = lab.node(name)
    if word == "start":
        lab.start(node)
    elif word in ("stop", "power-cut", "reboot"):
        {"stop": node.stop, "power-cut": node.power_cut, "reboot": node.reboot}[word]()
    elif word in ("freeze", "thaw"):
        if not node.leader():
            raise LabError(f"{name} is off; switch it on with 'lab start {name}'.")
        lab.cgroups.freeze(name, word == "freeze")
    elif word in ("cut", "heal"):
        lab.cable(name, cut=word == "cut")
    elif word == "loss":
        if not 0 <= options.percent <= 100:
            raise LabError("The loss is a percentage from 0 to 100.")
        lab.cable(name, loss=options.percent)
    elif word == "rate":
        lab.cable(name, rate=network.check_rate(options.rate))
    elif word in ("isolate", "rejoin"):
        if name not in network.plugged():
            raise LabError(f"{name} is off; switch it on with 'lab start {name}'.")
        network.set_management(name, word == "rejoin")
    elif word == "disk":
        lab.hinder(name, disk=options.speed if hinder.bytes_per_second(options.speed) else "")
    elif word == "clock":
        lab.hinder(name, clock=options.seconds)
    elif word == "fault":
        trouble.make(name, options.kind, options.value, node.root)
    elif word == "mend":
        trouble.mend(name, node.root)
    elif word == "memory":
        size = parse_size(options.size)
        if node.power() != "off":
            lab.cgroups.set_memory(name, size)
        lab.change(name, memory=options.size)
    elif word == "set":
        lab.set_values(name, options.pairs)
    say(f"{name}: {word} done.")


def dispatch(lab: Lab, options: argparse.Namespace) -> int:
    """Do what the words say; returns the exit code."""
    word = options.word
    checks.require_root()
    if word == "deps":
        packages = checks.install_packages()
        say(f"Installed {', '.join(packages)}." if packages else "All programs are there.")
    elif word == "status":
        return print_status(lab, options.json)
    elif word == "inventory":
        if not lab.state.inventory.exists():
            raise LabError("There is no inventory before the first 'lab up'.")
        print(lab.state.inventory)
    elif word == "shell":
        lab.node(options.node)
        command = ssh_argv(lab.state, options.node, *options.command)
        os.execvp(command[0], command)
    elif word == "put-image":
        say(f"{options.node}: {transfer.put_image(lab.node(options.node), options.archive)}")
    elif word == "put-dir":
        transfer.put_dir(lab.node(options.node), options.source, options.destination)
        say(f"{options.node}: {options.destination} is equal to {options.source}.")
    else:
        lab.state.make()
        with locked(lab.state.lock):
            change(lab, options)
    return 0


def main(arguments: list[str]) -> int:
    """The tool; every known trouble is one sentence and code 1."""
    # where ip, tc and nft are; 'su' without '-' leaves it out of the path
    os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
    try:
        state = State.from_environment()
        if arguments[:1] == ["keeper"]:  # a node's power supply, started by Node.start
            return keeper.keep(state, arguments[1], detect())
        options = parser().parse_args(arguments)
        return dispatch(Lab(state, detect()), options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; 'lab up' goes on, 'lab down' cleans up.", file=sys.stderr, flush=True)
        return 130
