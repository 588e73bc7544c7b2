# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""All that is particular to Ray: how an engine's ranks come together over it, one container a rank.

The head's container starts Ray's head, waits until every other node has joined, and becomes the engine. The others wait for the head's Ray, and
become a node of it. So a container ends when the engine, or the node's Ray, does; and the order in which they are started doesn't matter.

Sources: C(ray start --help), C(ray/scripts/scripts.py) and C(ray/_private/ray_constants.py) of Ray 2.60.0, and runs of it on two nodes.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Executor, RankSpec
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Signature as S

MIB = 1024**2

# What else of Ray listens on a node, on the ports that follow the rendezvous port; left alone, Ray would take whatever is free.
_PORTS = ("node-manager", "object-manager", "runtime-env-agent", "dashboard-agent-listen", "dashboard-agent-grpc", "metrics-export")

# Shared memory for Ray's objects on a node. Ray itself would take 30 % of a memory that is the GPU's, too. vLLM's ranks talk by queues of its
# own; Ray carries the configuration and what a rank raises. Less than 75 MiB Ray refuses (OBJECT_STORE_MINIMUM_MEMORY_BYTES).
_OBJECT_STORE = 256 * MIB

# The object store, and vLLM's queues beside it: 400 MiB of /dev/shm were laid out on the head. Where it has less, Ray takes the disk.
_LEAST_SHM = 768 * MIB

# Ray's processes at rest, each page that several have counted once (PSS): 290 MiB at the head, 253 MiB on the other node.
_PROCESSES = 320 * MIB

_PROGRAM = """
import json, os, signal, socket, subprocess, sys, time


def say(text):
    print("Ray launcher: " + text, flush=True)


def wait(what, look):
    began, told = time.monotonic(), 30
    patience = float(os.environ.get("SPARKSTACK_RAY_PATIENCE") or 1800)
    while True:
        missing = look()
        if not missing:
            return
        passed = time.monotonic() - began
        if passed > patience:
            say("gave up after %.0f s: %s %s" % (passed, what, missing))
            sys.exit(1)
        if passed > told:
            say("for %.0f s %s %s" % (passed, what, missing))
            told *= 2
        time.sleep(1)


def head():
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), 5).close()
    except OSError as error:
        return "at %s (%s)" % (address, "no answer" if isinstance(error, socket.timeout) else error)


def others():
    there = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    return ", ".join(name for name in nodes if name not in there)


address, nodes, words = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
end = words.index("--") if "--" in words else len(words)
# Of a token alone only the head would take notice.
if os.environ.get("RAY_AUTH_TOKEN"):
    os.environ.setdefault("RAY_AUTH_MODE", "token")
if end == len(words):
    wait("there is no head of Ray", head)
    # Ray itself takes half a minute to end when its head is gone. With this process its container ends, and so do all in it.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    sys.exit(subprocess.call(words))
code = subprocess.call(words[:end])
if code:
    say("the head of Ray did not start")
    sys.exit(code)
# Each node has its own variables: those of the head are not to replace them.
folder = os.environ["VLLM_CONFIG_ROOT"]
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "ray_non_carry_over_env_vars.json"), "w") as stream:
    json.dump(sorted(os.environ), stream)
os.environ["RAY_ADDRESS"] = address
import ray

ray.init(logging_level="ERROR", log_to_driver=False)
wait("no Ray has come from", others)
ray.shutdown()
say("all of %s have come" % ", ".join(nodes))
os.execvp(words[end + 1], words[end + 1 :])
"""


def command(spec: RankSpec, engine: t.Sequence[str]) -> t.List[str]:
    """The whole argv of a rank, without secrets. :param engine: the argv of the engine itself, which the head's container becomes."""
    place = spec.head_address if ":" not in spec.head_address else "[" + spec.head_address + "]"
    address = "{0}:{1}".format(place, spec.rendezvous_port)
    # An option and its value in one word: the engine has options of the same names.
    argv = ["python3", "-c", _PROGRAM, address, ",".join(spec.addresses), "ray", "start"]
    argv += ["--head", "--port={0}".format(spec.rendezvous_port)] if spec.rank == 0 else ["--address=" + address, "--block"]
    argv += ["--node-ip-address=" + spec.address]
    argv += ["--{0}-port={1}".format(name, spec.rendezvous_port + 1 + at) for at, name in enumerate(_PORTS)]
    # To the processes that it starts the kernel gives free ports. Without this Ray takes them from 10002 on, whoever listens there.
    argv += ["--min-worker-port=0", "--max-worker-port=0"]
    # A process a GPU; and none in store, of which there would be one a core.
    argv += ["--num-gpus={0}".format(_gpus(spec)), "--num-cpus=1"]
    argv += ["--object-store-memory={0}".format(_OBJECT_STORE)]
    argv += ["--disable-usage-stats", "--log-style=record", "--log-color=false"]
    if spec.rank == 0:
        # The monitor is for clusters that grow; it listens on a port that can't be chosen.
        return argv + ["--include-dashboard=false", "--no-monitor", "--"] + list(engine)
    return argv


def _gpus(spec: RankSpec) -> int:
    """GPUs that a node lends."""
    return max(spec.tensor_parallel_size * spec.pipeline_parallel_size // spec.ranks, 1)


def environment(spec: RankSpec) -> t.Dict[str, str]:
    """What Ray reads from a rank's environment."""
    return {
        # On unified memory Ray counts what the GPU uses as the host's, and kills the engine for it.
        "RAY_memory_monitor_refresh_ms": "0",
        # The address of the fabric, to Ray and to the processes that it starts.
        "RAY_NODE_IP_ADDRESS": spec.address,
        "RAY_OVERRIDE_NODE_IP_ADDRESS": spec.address,
        "RAY_USAGE_STATS_ENABLED": "0",
        # The head's log has the lines of all ranks: each of them, and plainly.
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        # Where vLLM looks for what of the head's environment it is not to lay over the others'.
        "VLLM_CONFIG_ROOT": "/tmp/vllm",
    }


def ports(rank: int, rendezvous_port: int) -> t.Tuple[int, ...]:
    """See C(Executor.ports)."""
    return ((rendezvous_port,) if rank == 0 else ()) + tuple(rendezvous_port + 1 + at for at in range(len(_PORTS)))


def node_bytes(rank: int) -> int:
    """See C(Executor.node_bytes): its processes, and the whole of the object store, which Ray fills as objects come."""
    return _PROCESSES + _OBJECT_STORE


EXECUTOR = Executor(
    title="Ray",
    package="ray",
    ports=ports,
    head_first=True,
    node_bytes=node_bytes,
    least_shm=_LEAST_SHM,
    told="an object store of {0} MiB a node, its memory monitor and dashboard off".format(_OBJECT_STORE // MIB),
    token="RAY_AUTH_TOKEN",
)

_JOIN = "See in {node}'s log why its Ray has not joined, and whether the nodes reach each other on the rendezvous port and those that follow it."
_SLOW = "See what else {node} is busy with, and who listens on the ports that follow the rendezvous port; then start all ranks again."
_TOKEN = "Give all nodes the same RAY_AUTH_TOKEN, by tp_launch_environment."

# What our own program and Ray's start say; more of Ray's, which other programs print as well, stands in _common.py.
SIGNATURES = (
    # "Ray launcher: for 60 s there is no head of Ray at 192.168.200.11:29501 ([Errno 111] Connection refused)", at 30 s, 60 s, 120 s and so on.
    S("rendezvous_timeout", "Ray launcher: for ", "soft", line="Ray launcher: ", remedy=_JOIN),
    # ".. gave up after 25 s: no Ray has come from 192.168.200.12, 192.168.200.13".
    S("rendezvous_timeout", "no Ray has come from ", "peer", r"gave up.* from (?P<peer>[\d.a-fA-F:]+)", line="Ray launcher: ", remedy=_JOIN),
    S("rendezvous_timeout", "there is no head of Ray at ", "peer", r"gave up", line="Ray launcher: ", remedy=_JOIN),
    S("rendezvous_timeout", "InvalidAuthToken", "cause", r"RPC error", remedy=_TOKEN),
    # A raylet that is not up within 30 s: one of its ports was taken, or the node had no time for it.
    S("unknown", "The current node timed out during startup", remedy=_SLOW),
)
