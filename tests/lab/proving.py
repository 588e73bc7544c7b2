# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A collective proof on two of the lab's nodes, in the real engine's image."""

from __future__ import annotations

import json
import subprocess
import time
import typing as t

import play
import yaml

ENGINE = yaml.safe_load((play.ROOT / "tests/lab/recipes/tiny-qwen3-moe.yml").read_text())["engines"]["vllm"]
CARD = "enp1s0f0np0"
ADDRESS = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}
PORT = 29556
PROOF = "/var/lib/sparkstack/collective/proved.json"
LAUNCH = {
    host: {
        "deployment": "proved",
        "engine": "vllm",
        "image": ENGINE["image"],
        "model": "/srv/models/none",
        "rank": rank,
        "ranks": 2,
        "address": address,
        "head_address": ADDRESS["spark1"],
        "rendezvous_port": PORT,
        "environment": {**ENGINE["environment"], "GLOO_SOCKET_IFNAME": CARD, "VLLM_HOST_IP": address, "HF_TOKEN": "hf_lab_secret_1"},
        "gpus": False,
        "shm_size": "1g",
        "memory": "4g",
    }
    for rank, (host, address) in enumerate(ADDRESS.items())
}
# Two cores serve the controller, both nodes and whatever else runs here: torch alone has taken 50 s to import.
SLOW = {"timeout": 180, "join_timeout": 60}


def command(launch: t.Mapping[str, t.Any], *options: str, **arguments: t.Any) -> list[str]:
    given = {"launch": "{{ launches[inventory_hostname] }}", "members": list(ADDRESS), **SLOW, **arguments}
    words = [str(play.BIN / "ansible"), ",".join(ADDRESS), "-i", play.inventory(), "-b", "-m", "sparkstack.inference.collective_proof", "-a", json.dumps(given)]
    return [*words, "-e", json.dumps({"launches": launch}), *options]


def environment() -> dict[str, str]:
    return {**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}


def prove(*options: str, launch: t.Mapping[str, t.Any] = LAUNCH, **arguments: t.Any) -> tuple[dict[str, dict[str, t.Any]], float]:
    """What the module returns on both nodes, and the seconds that it took; whatever comes out, nothing is left on the nodes."""
    start = time.monotonic()
    done = subprocess.run(command(launch, *options, **arguments), env=environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=400, check=False)
    seconds = time.monotonic() - start
    assert "hf_lab_secret_1" not in done.stdout.replace(json.dumps({"launches": launch}), "")
    found = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"]
    for node in ADDRESS:
        assert not play.containers(node)
    return t.cast("dict[str, dict[str, t.Any]]", found), seconds


def same(found: dict[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    """The verdict, which is the same on both."""
    one, other = (found[node] for node in ADDRESS)
    assert all(one[key] == other[key] for key in ("verdict", "cause", "culprit", "remedy", "group", "remembered"))
    # By its own clock, each says how long ago it was.
    assert one["remembered"] or one["message"] == other["message"]
    return one
