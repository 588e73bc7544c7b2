# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image brings of the network's variables, and what becomes of it."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_environment as subject

# As docker image inspect shows a derived image whose author had one machine in mind.
ENV = [
    "PATH=/usr/local/cuda/bin:/usr/bin",
    "NCCL_VERSION=2.28.9-1",
    "NCCL_SOCKET_IFNAME=eth0",
    "GLOO_SOCKET_IFNAME=eth0",
    "UCX_TLS=tcp,sm,self",
    "OMPI_MCA_btl_tcp_if_include=eth0",
    "VLLM_HOST_IP=192.168.1.5",
    "NCCL_DEBUG=WARN",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "NCCL_PROXY_TOKEN=abcdef123",
    "HF_HOME=/root/.cache",
]


def test_the_networks_variables_are_found() -> None:
    assert subject.network_variables(subject.parse_environment(ENV)) == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_DEBUG": "WARN",
        "NCCL_PROXY_TOKEN": "***",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "UCX_TLS": "tcp,sm,self",
        "VLLM_HOST_IP": "192.168.1.5",
    }
    assert subject.parse_environment(None) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==ens1f0\n", {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=ens1f0"}),
        ("# NCCL_DEBUG=INFO\n\nno sign\nNCCL_DEBUG=WARN # loud", {"NCCL_DEBUG": "WARN # loud"}),
        # What stands first counts: NCCL leaves alone what is set.
        ("NCCL_DEBUG=WARN\r\nNCCL_DEBUG=INFO\r\n", {"NCCL_DEBUG": "WARN"}),
        ("NCCL_DEBUG = WARN\nexport NCCL_NET=IB\n", {"NCCL_DEBUG ": " WARN", "export NCCL_NET": "IB"}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_nccl_reads_it(text: str, expected: dict[str, str]) -> None:
    assert subject.parse_conf(text) == expected


def test_an_environment_file() -> None:
    assert subject.parse_env_file("# For this node only\n\nNCCL_NET=IB\n  GLOO_SOCKET_IFNAME=eth0 \n") == {"NCCL_NET": "IB", "GLOO_SOCKET_IFNAME": "eth0"}


def judged(environment: dict[str, str], ours: dict[str, str], *files: tuple[str, dict[str, str]]) -> list[tuple[str, str, str, str | None, bool]]:
    baked: dict[str, t.Any] = {"environment": environment, "files": [{"path": path, "values": values} for path, values in files]}
    found = subject.judge(baked, ours)
    for finding in found:
        assert finding.keys() == {"name", "value", "where", "status", "counts", "why", "risk"} and finding["why"].endswith(".")
    return [(finding["name"], finding["where"], finding["status"], finding["counts"], bool(finding["risk"])) for finding in found]


HOME, SYSTEM = "/root/.nccl.conf", "/etc/nccl.conf"


@pytest.mark.parametrize(
    ("environment", "ours", "files", "expected"),
    [
        ({"NCCL_IB_HCA": "mlx5_0"}, {"NCCL_IB_HCA": "mlx5_0"}, [], [("NCCL_IB_HCA", "ENV", "same", "mlx5_0", False)]),
        ({"NCCL_IB_HCA": "mlx5_0"}, {"NCCL_IB_HCA": "rocep1s0f0"}, [], [("NCCL_IB_HCA", "ENV", "overridden", "rocep1s0f0", False)]),
        # An empty value is a value: NCCL takes its own default then, and no file's.
        ({"NCCL_NET": "IB"}, {"NCCL_NET": ""}, [], [("NCCL_NET", "ENV", "overridden", "", False)]),
        ({"NCCL_DEBUG": "INFO"}, {}, [], [("NCCL_DEBUG", "ENV", "left", "INFO", False)]),
        ({"LD_LIBRARY_PATH": "/x"}, {}, [], []),
        ({}, {"NCCL_NET": "IB"}, [(SYSTEM, {"NCCL_NET": "Socket"})], [("NCCL_NET", SYSTEM, "overridden", "IB", False)]),
        ({}, {}, [(SYSTEM, {"NCCL_NET": "Socket"})], [("NCCL_NET", SYSTEM, "left", "Socket", True)]),
        # A file sets any variable, not only NCCL's.
        ({}, {}, [(SYSTEM, {"LD_PRELOAD": "/x.so"})], [("LD_PRELOAD", SYSTEM, "left", "/x.so", False)]),
        (
            {"NCCL_DEBUG": "WARN"},
            {},
            [(HOME, {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}), (SYSTEM, {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Tree"})],
            [
                ("NCCL_DEBUG", "ENV", "left", "WARN", False),
                ("NCCL_ALGO", HOME, "left", "Ring", True),
                ("NCCL_DEBUG", HOME, "shadowed", "WARN", False),
                ("NCCL_ALGO", SYSTEM, "shadowed", "Ring", False),
                ("NCCL_DEBUG", SYSTEM, "same", "WARN", False),
            ],
        ),
        ({}, {"NCCL_DEBUG": "WARN"}, [(SYSTEM, {"NCCL_DEBUG ": " INFO"})], [("NCCL_DEBUG ", SYSTEM, "void", None, False)]),
    ],
)
def test_which_value_counts(environment: t.Any, ours: t.Any, files: t.Any, expected: t.Any) -> None:
    assert judged(environment, ours, *files) == expected


@pytest.mark.parametrize(
    ("setting", "risky"),
    [
        ("NCCL_IB_USE_INLINE=1", True),
        ("NCCL_IB_USE_INLINE=0", False),
        ("NCCL_COMM_ID=10.0.0.1:1234", True),
        ("NCCL_SOCKET_FAMILY=AF_INET6", True),
        ("NCCL_SOCKET_FAMILY=AF_INET", False),
        ("NCCL_TOPO_FILE=/etc/topo.xml", True),
        ("NCCL_NET_PLUGIN=aws-ofi", True),
        ("NCCL_NET_PLUGIN=none", False),
        ("NCCL_IB_GID_INDEX=0", True),
        ("NCCL_IB_HCA=mlx5", True),
        ("NCCL_CROSS_NIC=1", True),
        ("SGLANG_HOST_IP=10.0.0.1", True),
        ("HOST_IP=10.0.0.1", True),
        ("GLOO_SOCKET_IFNAME=eth0", True),
        ("UCX_TLS=tcp", True),
        ("NCCL_NET_GDR_LEVEL=0", False),
        ("NCCL_CUMEM_ENABLE=0", False),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=1", False),
    ],
)
def test_what_is_left_and_does_harm(setting: str, risky: bool) -> None:
    name, _equals, value = setting.partition("=")
    assert judged({name: value}, {}) == [(name, "ENV", "left", value, risky)]


def test_the_sentences() -> None:
    baked = {
        "environment": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "WARN", "VLLM_HOST_IP": "192.168.200.11"},
        "files": [{"path": SYSTEM, "values": {"NCCL_IB_USE_INLINE": "1", "export NCCL_NET": "IB"}}],
    }
    ours = {"NCCL_SOCKET_IFNAME": "enp1s0f0np0", "VLLM_HOST_IP": "192.168.200.11"}
    assert subject.notes(subject.judge(baked, ours)) == [
        "the image's own NCCL_SOCKET_IFNAME=eth0 does not count: each node has its own value",
        "the image's own NCCL_DEBUG=WARN counts: no node has a value for it",
        "the image's own NCCL_IB_USE_INLINE=1 (/etc/nccl.conf) counts, and with some RDMA devices the first small message never arrives: "
        "set NCCL_IB_USE_INLINE in the recipe's environment or in nccl_env_extra",
        "the image's /etc/nccl.conf has a line that NCCL does not understand: export NCCL_NET=IB",
    ]
    assert subject.notes(subject.judge({}, ours)) == []


def test_differences() -> None:
    ours = {"NCCL_NET": "IB", "GLOO_SOCKET_IFNAME": "enp1s0f1np1", "NCCL_PLUGIN_TOKEN": "new"}
    theirs = {"NCCL_NET": "IB", "GLOO_SOCKET_IFNAME": "enp1s0f0np0", "NCCL_IB_GID_INDEX": "3", "NCCL_DEBUG": "INFO", "NCCL_PLUGIN_TOKEN": "old"}
    assert subject.differences(ours, theirs, {"NCCL_IB_GID_INDEX"}) == [
        {"name": "GLOO_SOCKET_IFNAME", "was": "enp1s0f0np0", "wanted": "enp1s0f1np1"},
        {"name": "NCCL_IB_GID_INDEX", "was": "3", "wanted": None},
        {"name": "NCCL_PLUGIN_TOKEN", "was": "***", "wanted": "***"},
    ]
