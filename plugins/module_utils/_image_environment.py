# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an image brings of the network's variables, and which value counts where a node has its own. Pure.

A variable of the container's environment counts before the same one of the image's C(ENV), and each of them before a file:
NCCL puts what its files say into the environment, where it isn't set yet, an empty value being set. It reads C(NCCL_CONF_FILE) or
else C(~/.nccl.conf), then C(/etc/nccl.conf).
Source: initEnvFunc() and setEnvFile() in NCCL's src/misc/param.cc, ncclOsSetEnv() in src/os/linux.cc (NCCL 2.30.7), and
"Environment Variables" in NCCL's documentation.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import HIDDEN, is_secret

SYSTEM_FILE = "/etc/nccl.conf"
IMAGE = "ENV"
"""Where a finding's value stands, when that isn't a file."""

Values = t.Dict[str, str]
Finding = t.Dict[str, t.Any]

# NCCL_IB_HCA, GLOO_SOCKET_IFNAME, UCX_TLS, TORCH_NCCL_BLOCKING_WAIT, OMPI_MCA_btl_tcp_if_include, VLLM_HOST_IP, MASTER_ADDR ..
_NETWORK = re.compile(
    r"(?:NCCL|GLOO|UCX|TORCH_NCCL|OMPI_MCA)_\w+|(?:\w+_)?HOST_IP|TP_SOCKET_IFNAME|MN_IF_NAME|RAY_(?:OVERRIDE_)?NODE_IP_ADDRESS|NODE_IP|MASTER_(?:ADDR|PORT)"
)
# CUDA's base images tell by it which package is in them; nothing reads it.
_LABELS = frozenset(["NCCL_VERSION", "UCX_VERSION"])
_WRITTEN = re.compile(r"[A-Za-z_]\w*")
# What a value does that stays, and what to set instead. Of a name that stands twice the value decides.
_RISKS: t.Sequence[t.Tuple[t.Pattern[str], str]] = [
    (re.compile(r"NCCL_IB_USE_INLINE=(?!0?$)"), "with some RDMA devices the first small message never arrives"),
    (re.compile(r"NCCL_COMM_ID="), "all ranks would meet at that address instead of the head's"),
    (re.compile(r"NCCL_SOCKET_FAMILY=AF_INET6"), "the fabric is set up over IPv4"),
    (re.compile(r"NCCL_(?:TOPO|GRAPH)_FILE="), "it describes the devices of another machine"),
    (re.compile(r"NCCL_NET_PLUGIN=(?!none$)"), "NCCL may take another network than its own"),
    (re.compile(r"NCCL_IB_(?:HCA|GID_INDEX|ADDR_RANGE|PKEY)="), "it names what another machine's network has"),
    (re.compile(r"NCCL_IB_(?:ADDR_FAMILY=AF_INET6|ROCE_VERSION_NUM=1)"), "the fabric is RoCE v2 over IPv4"),
    (re.compile(r"NCCL_(?:NET|IB_DISABLE|ALGO|PROTO|P2P_DISABLE|SHM_DISABLE|CROSS_NIC|IB_MERGE_NICS)="), "it decides how NCCL goes from node to node"),
    (re.compile(r"UCX_TLS="), "UCX can use no other transport"),
    (re.compile(r"(?:\w+_)?HOST_IP=|NODE_IP=|RAY_\w+_ADDRESS="), "every node would tell the same address as its own"),
    (re.compile(r"\w*_IFNAME=|MN_IF_NAME=|OMPI_MCA_\w*_if_\w+="), "every node would use an interface of this name"),
]


def network_variables(environment: t.Mapping[str, str]) -> Values:
    """Those of the variables that have to do with the network between the nodes, secrets hidden."""
    found = {name: value for name, value in environment.items() if _NETWORK.fullmatch(name) and name not in _LABELS}
    return {name: HIDDEN if is_secret(name) else value for name, value in sorted(found.items())}


def parse_environment(entries: t.Optional[t.Iterable[str]]) -> Values:
    """C(NAME=value) entries, as Docker's inspection has them."""
    pairs = [entry.partition("=") for entry in entries or []]
    return {name: value for name, equals, value in pairs if equals}


def parse_conf(text: str) -> Values:
    """The variables of a file as NCCL reads it: to the letter, with no blank taken away; of a name that stands twice, the first.

    "NCCL_DEBUG = WARN" sets a variable whose name ends in a blank, and "export NCCL_DEBUG=WARN" one that begins with 'export'.
    """
    found: Values = {}
    for line in text.split("\n"):
        line = line[:-1] if line.endswith("\r") else line
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, value)
    return {name: HIDDEN if is_secret(name) else value for name, value in found.items()}


def parse_env_file(text: str) -> Values:
    """The variables of a file as C(docker run --env-file) takes it."""
    lines = [line.strip() for line in text.splitlines()]
    return parse_environment(line for line in lines if line and not line.startswith("#"))


def judge(baked: t.Mapping[str, t.Any], ours: t.Mapping[str, str]) -> t.List[Finding]:
    """What becomes of each variable that the image brings.

    :param baked: C(environment), the image's network variables, and C(files), a list of C(path) and C(values) in the order in which
        NCCL reads them.
    :param ours: the variables that the container is given.
    :returns: for each C(name) its C(value), C(where) it stands (V(ENV) or a file), C(status), C(counts) (the value that the engine
        gets, or None where it gets none), C(why), and C(risk) (what it does, or None). The C(status) is C(same), C(overridden), C(shadowed) (by another of the
        image's own), C(left) or C(void) (nothing reads it).
    """
    found: t.List[Finding] = []
    known: t.Dict[str, t.Tuple[str, str]] = {}
    layers = [(IMAGE, baked.get("environment") or {})] + [(entry["path"], entry["values"]) for entry in baked.get("files") or []]
    for where, values in layers:
        for name, value in sorted(values.items()):
            if where == IMAGE and not _NETWORK.fullmatch(name):
                continue
            found.append(_judged(name, str(value), where, ours, known))
        for name, value in values.items():
            known.setdefault(name, (where, str(value)))
    return found


def _judged(name: str, value: str, where: str, ours: t.Mapping[str, str], known: t.Mapping[str, t.Tuple[str, str]]) -> Finding:
    finding: Finding = {"name": name, "value": value, "where": where, "risk": None}
    if not _WRITTEN.fullmatch(name):
        return dict(finding, status="void", counts=None, why="NCCL takes the line to the letter, and nothing has this name.")
    if name in ours:
        counts = str(ours[name])
        if counts == value:
            return dict(finding, status="same", counts=counts, why="The node's own value is the same.")
        above = "the image's" if where == IMAGE else "any file"
        return dict(finding, status="overridden", counts=counts, why=f"The container's environment counts before {above}.")
    if name in known:
        first, counts = known[name]
        return dict(finding, status="same" if counts == value else "shadowed", counts=counts, why=f"{_place(first)} counts before this file.")
    risk = next((text for pattern, text in _RISKS if pattern.match(f"{name}={value}")), None)
    why = f"The node has no value of its own for it: {risk}." if risk else "It is no part of the node's place on the fabric."
    return dict(finding, status="left", counts=value, why=why, risk=risk)


def notes(findings: t.Sequence[Finding]) -> t.List[str]:
    """The findings in a few sentences without a full stop, those that need somebody last."""
    told = []
    overridden = _shown(findings, lambda finding: finding["status"] == "overridden")
    if overridden:
        told.append(f"the image's own {overridden} {'do' if ', ' in overridden else 'does'} not count: each node has its own value")
    kept = _shown(findings, lambda finding: finding["status"] == "left" and not finding["risk"])
    if kept:
        told.append(f"the image's own {kept} {'count' if ', ' in kept else 'counts'}: no node has a value for {'them' if ', ' in kept else 'it'}")
    for finding in findings:
        if finding["status"] == "left" and finding["risk"]:
            told.append(
                "the image's own {} counts, and {}: set {} in the recipe's environment or in nccl_env_extra".format(
                    _written(finding), finding["risk"], finding["name"]
                )
            )
        elif finding["status"] == "void":
            told.append("the image's {} has a line that NCCL does not understand: {}={}".format(finding["where"], finding["name"], finding["value"]))
    return told


def differences(ours: t.Mapping[str, str], theirs: t.Mapping[str, str], own_names: t.Container[str]) -> t.List[t.Dict[str, t.Optional[str]]]:
    """What would change where C(theirs) is now: C(name), C(was) and C(wanted), each None where there is none.

    :param own_names: the names for which a missing value of ours means that there should be none.
    """
    changed = [name for name, value in ours.items() if theirs.get(name) != value]
    gone = [name for name in theirs if name not in ours and name in own_names]
    found = [{"name": name, "was": theirs.get(name), "wanted": ours.get(name)} for name in sorted(changed + gone)]
    return [
        {key: HIDDEN if value is not None and key != "name" and is_secret(entry["name"] or "") else value for key, value in entry.items()} for entry in found
    ]


def _shown(findings: t.Sequence[Finding], wanted: t.Callable[[Finding], bool]) -> str:
    return ", ".join(_written(finding) for finding in findings if wanted(finding))


def _written(finding: Finding) -> str:
    return "{}={}{}".format(finding["name"], finding["value"], "" if finding["where"] == IMAGE else " ({})".format(finding["where"]))


def _place(where: str) -> str:
    return "The image's environment" if where == IMAGE else where
