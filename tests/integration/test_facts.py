# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts modules and the roles on them, by Ansible over SSH on the lab's nodes."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import time
import typing as t

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/lab/lab"
BIN = ROOT / ".venv/bin"
MODULES = {"gpu_memory": "sparkstack.inference.gpu_memory_facts", "fabric": "sparkstack.inference.fabric_facts"}
FABRIC_KEYS = {"rails", "interfaces", "candidates", "address", "netdev", "environment", "environment_reasons", "problems"}
MEMORY_KEYS = {
    "unified", "total_bytes", "free_bytes", "available_bytes", "page_cache_bytes", "swap_total_bytes",
    "swap_free_bytes", "gpus", "processes", "gathered_at", "problems",
    "shared_memory_bytes", "huge_page_bytes", "huge_page_free_bytes", "cma_total_bytes", "cma_free_bytes",
}  # fmt: skip
IMAGE = "facts-test:1"

pytestmark = pytest.mark.lab


def lab(*words: str) -> str:
    done = subprocess.run([str(LAB), *words], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def ssh(node: str, command: str) -> str:
    """Run a shell's command as root on a node."""
    return lab("shell", node, f"sudo sh -c {shlex.quote(command)}")


@pytest.fixture(scope="module", autouse=True)
def inventory() -> t.Iterator[str]:
    lab("up", "--nodes", "2")
    subprocess.run(["make", "-s", "-C", str(ROOT), "collection"], check=True, timeout=300)
    yield lab("inventory")


@pytest.fixture
def stand_in() -> t.Iterator[t.Callable[..., None]]:
    """Sets stand-ins of a node and takes them back."""
    done: list[tuple[str, str]] = []

    def apply(node: str, **values: str) -> None:
        pairs = {key.replace("__", "."): value for key, value in values.items()}
        done.extend((node, key) for key in pairs)
        lab("set", node, *(f"{key}={value}" for key, value in pairs.items()))

    yield apply
    for node, key in done:
        lab("set", node, f"{key}=")


def run(inventory: str, program: str, *words: str) -> tuple[int, dict[str, t.Any]]:
    """Run Ansible; its exit code, and what its JSON callback says."""
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/collections"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "LC_ALL": "C.UTF-8",
    }
    done = subprocess.run([str(BIN / program), "-i", inventory, *words], capture_output=True, text=True, env=environment, timeout=300, cwd=ROOT)
    assert done.stdout.find("{") >= 0, done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout[done.stdout.index("{") :])


def module(inventory: str, name: str, *words: str, arguments: dict[str, t.Any] | None = None) -> dict[str, dict[str, t.Any]]:
    """Run a module as root on both nodes; the result by node."""
    code, output = run(inventory, "ansible", "sparks", "-b", "-m", name, "-a", json.dumps(arguments) if arguments else "", *words)
    hosts: dict[str, dict[str, t.Any]] = output["plays"][0]["tasks"][0]["hosts"]
    assert code == 0 and sorted(hosts) == ["spark1", "spark2"], hosts
    return hosts


def role(inventory: str, folder: pathlib.Path, name: str, variables: dict[str, t.Any], *words: str) -> tuple[int, dict[str, t.Any]]:
    """Play one role on both nodes; the exit code and the whole output."""
    play = folder / "play.yml"
    call = {"ansible.builtin.include_role": {"name": f"sparkstack.inference.{name}"}}
    play.write_text(json.dumps([{"hosts": "sparks", "gather_facts": False, "tasks": [call]}]))
    return run(inventory, "ansible-playbook", str(play), "-e", json.dumps(variables), *words)


def changes(output: dict[str, t.Any]) -> dict[str, int]:
    return {host: stats["changed"] for host, stats in output["stats"].items()}


def failures(output: dict[str, t.Any]) -> dict[str, str]:
    found = {}
    for task in output["plays"][0]["tasks"]:
        found.update({host: result["msg"] for host, result in task["hosts"].items() if result.get("failed")})
    return found


def fabric(inventory: str, node: str, **arguments: t.Any) -> dict[str, t.Any]:
    facts: dict[str, t.Any] = module(inventory, MODULES["fabric"], arguments=arguments)[node]["ansible_facts"]["fabric"]
    return facts


def codes(facts: dict[str, t.Any]) -> list[str]:
    return [problem["code"] for problem in facts["problems"]]


@pytest.mark.parametrize(("fact", "keys"), [("gpu_memory", MEMORY_KEYS), ("fabric", FABRIC_KEYS)])
def test_check_run_check_run(inventory: str, fact: str, keys: set[str]) -> None:
    seen = []
    for words in (["--check"], [], ["--check"], []):
        hosts = module(inventory, MODULES[fact], *words)
        for result in hosts.values():
            assert result["changed"] is False
            assert result["ansible_facts"].keys() - {"discovered_interpreter_python"} == {fact}
            assert result["ansible_facts"][fact].keys() == keys
        seen.append({host: result["ansible_facts"][fact] for host, result in hosts.items()})
    if fact == "fabric":
        assert seen[0] == seen[1] == seen[2] == seen[3]
        assert [seen[0][host]["address"] for host in ("spark1", "spark2")] == ["192.168.200.11", "192.168.200.12"]


def test_an_idle_gb10(inventory: str) -> None:
    meminfo = dict(line.split(":") for line in ssh("spark1", "cat /proc/meminfo").splitlines())
    facts = module(inventory, MODULES["gpu_memory"])["spark1"]["ansible_facts"]["gpu_memory"]
    assert facts["total_bytes"] == int(meminfo["MemTotal"].split()[0]) * 1024
    assert 0 < facts["free_bytes"] <= facts["available_bytes"] <= facts["total_bytes"]
    (gpu,) = facts["gpus"]
    assert (facts["unified"], gpu["name"], gpu["total_bytes"], gpu["used_bytes"]) == (True, "NVIDIA GB10", None, None)
    assert abs(time.time() - time.mktime(time.strptime(facts["gathered_at"], "%Y-%m-%dT%H:%M:%SZ")) + time.timezone) < 60


def test_page_cache_full_after_a_copy(inventory: str, stand_in: t.Callable[..., None]) -> None:
    stand_in(
        "spark1",
        meminfo__MemTotal="127600748",
        meminfo__MemFree="43515904",
        meminfo__MemAvailable="121634816",
        meminfo__Cached="78643200",
        meminfo__Buffers="204800",
        meminfo__Shmem="102400",
    )
    facts = module(inventory, MODULES["gpu_memory"])["spark1"]["ansible_facts"]["gpu_memory"]
    assert {key: facts[key] // 1024 for key in ("total_bytes", "free_bytes", "available_bytes", "page_cache_bytes")} == {
        "total_bytes": 127600748,
        "free_bytes": 43515904,
        "available_bytes": 121634816,
        "page_cache_bytes": 78643200 + 204800 - 102400,
    }


@pytest.fixture
def holder() -> t.Iterator[int]:
    """The process id of a real container on spark1, whose image is made of the node's own files."""
    files = "usr/bin/sleep usr/lib/x86_64-linux-gnu/libc.so.6 lib64/ld-linux-x86-64.so.2"
    ssh("spark1", f"tar -ch -C / {files} | docker import - {IMAGE} && docker run -d --init --name holder {IMAGE} /usr/bin/sleep 600")
    yield int(ssh("spark1", "docker inspect -f '{{.State.Pid}}' holder"))
    ssh("spark1", f"docker rm -f holder && docker rmi {IMAGE}")


def test_the_container_that_holds_the_memory(inventory: str, stand_in: t.Callable[..., None], holder: int) -> None:
    stand_in("spark1", gpu__apps=f"1:518:systemd;{holder}:14600:VLLM::Worker")
    first, second = module(inventory, MODULES["gpu_memory"])["spark1"]["ansible_facts"]["gpu_memory"]["processes"]
    container_id = ssh("spark1", "docker inspect -f '{{.Id}}' holder")
    assert first["container"] == {"id": container_id, "name": "holder", "image": IMAGE}
    assert (first["pid"], first["name"], first["user"], first["type"]) == (holder, "VLLM::Worker", "root", "C")
    assert first["used_bytes"] == 14600 * 1024 * 1024
    assert (second["pid"], second["container"]) == (1, None)


def test_a_broken_driver_is_a_warning(inventory: str, stand_in: t.Callable[..., None]) -> None:
    stand_in("spark1", gpu__error="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    hosts = module(inventory, MODULES["gpu_memory"])
    facts = hosts["spark1"]["ansible_facts"]["gpu_memory"]
    assert (facts["gpus"], facts["processes"], facts["unified"]) == ([], [], False)
    assert "failed with exit code 9: NVIDIA-SMI has failed" in str(hosts["spark1"]["warnings"])
    assert len(hosts["spark2"]["ansible_facts"]["gpu_memory"]["gpus"]) == 1


def test_discrete_cards_and_none(inventory: str, stand_in: t.Callable[..., None]) -> None:
    stand_in("spark1", **{"gpu.count": "2", "gpu.name": "NVIDIA H200", "gpu.memory.total": "143771"})
    stand_in("spark1", **{"gpu.memory.used": "133428", "gpu.memory.free": "9728", "gpu.addressing_mode": "HMM"})
    stand_in("spark2", gpu__count="0")
    hosts = module(inventory, MODULES["gpu_memory"])
    facts = hosts["spark1"]["ansible_facts"]["gpu_memory"]
    assert (facts["unified"], facts["total_bytes"], facts["free_bytes"]) == (False, 2 * 143771 << 20, 2 * 9728 << 20)
    assert [gpu["uuid"][-1] for gpu in facts["gpus"]] == ["0", "1"]
    assert hosts["spark2"]["ansible_facts"]["gpu_memory"]["gpus"] == []
    assert "warnings" not in hosts["spark2"] or "nvidia-smi" not in str(hosts["spark2"]["warnings"])


def test_environment_with_and_without_rdma(inventory: str, stand_in: t.Callable[..., None]) -> None:
    stand_in("spark2", rdma="false")
    hosts = {host: result["ansible_facts"]["fabric"] for host, result in module(inventory, MODULES["fabric"]).items()}
    one, two = hosts["spark1"], hosts["spark2"]
    assert (one["environment"]["NCCL_IB_HCA"], one["environment"]["NCCL_IB_GID_INDEX"]) == ("rocep1s0f0", "3")
    assert (one["environment"]["NCCL_NET"], codes(one)) == ("IB", [])
    assert (two["environment"]["NCCL_IB_DISABLE"], two["environment"]["NCCL_NET"]) == ("1", "Socket")
    assert (codes(two), two["rails"][0]["hca"]) == (["no_rdma"], None)
    assert (one["environment"]["VLLM_HOST_IP"], two["environment"]["VLLM_HOST_IP"]) == ("192.168.200.11", "192.168.200.12")


def test_faults_of_a_link(inventory: str, stand_in: t.Callable[..., None]) -> None:
    stand_in("spark1", link__speed="25000")
    stand_in("spark2", **{"rdma.ports/1/gid_attrs/types/3": "IB/RoCE v1"})
    assert codes(fabric(inventory, "spark1", expected_speed_mbps=200000)) == ["speed_degraded"]
    assert codes(fabric(inventory, "spark2")) == ["no_roce_v2_gid"]
    assert codes(fabric(inventory, "spark1", fabric_cidr="10.99.0.0/24")) == ["no_address"]
    ssh("spark1", "ip link set enp1s0f0np0 mtu 1500")
    try:
        facts = fabric(inventory, "spark1")
    finally:
        ssh("spark1", "ip link set enp1s0f0np0 mtu 9000")
    assert (codes(facts), facts["rails"][0]["active_mtu"]) == (["mtu_small"], 1024)


def test_a_cut_cable_stops_the_role(inventory: str, tmp_path: pathlib.Path) -> None:
    lab("cut", "spark2")
    try:
        code, output = role(inventory, tmp_path, "nccl_env", {})
    finally:
        lab("heal", "spark2")
    assert code == 2
    assert failures(output)["spark2"].startswith("spark2: The fabric link enp1s0f0np0 has no signal. Check the cable")


def test_nccl_env_writes_only_when_asked(inventory: str, tmp_path: pathlib.Path) -> None:
    target = "/etc/facts-test/nccl.env"
    wanted: dict[str, t.Any] = {"nccl_env_file": target, "nccl_env_extra": {"NCCL_DEBUG": "INFO", "NCCL_NET": None}}
    listing = "ls -d /etc/facts-test 2>/dev/null || echo none"
    code, output = role(inventory, tmp_path, "nccl_env", wanted)
    assert (code, changes(output)) == (0, {"spark1": 0, "spark2": 0})
    assert ssh("spark1", listing) == "none"
    wanted["nccl_env_write"] = True
    try:
        _code, output = role(inventory, tmp_path, "nccl_env", wanted, "--check", "--diff")
        assert (changes(output), ssh("spark1", listing)) == ({"spark1": 2, "spark2": 2}, "none")
        _code, output = role(inventory, tmp_path, "nccl_env", wanted)
        assert changes(output) == {"spark1": 2, "spark2": 2}
        for words in ([], ["--check", "--diff"]):
            _code, output = role(inventory, tmp_path, "nccl_env", wanted, *words)
            assert changes(output) == {"spark1": 0, "spark2": 0}
        lines = ssh("spark2", f"stat -c '%a %U' {target}; grep -v '^#' {target}").splitlines()
        assert lines[0] == "644 root"
        assert {"NCCL_DEBUG=INFO", "VLLM_HOST_IP=192.168.200.12", "GLOO_SOCKET_IFNAME=enp1s0f0np0"} <= set(lines)
        assert not [line for line in lines if line.startswith("NCCL_NET=")]
    finally:
        for node in ("spark1", "spark2"):
            ssh(node, "rm -rf /etc/facts-test")


def test_what_an_image_brings_of_its_own(inventory: str, tmp_path: pathlib.Path) -> None:
    image, kept = "facts-test/baked:1", "/var/tmp/facts-baked"
    # The file is behind a link, as an image's author may have laid it; nothing in the image could be started.
    ssh(
        "spark1",
        f"mkdir -p {kept}/etc {kept}/opt && cd {kept} && echo NCCL_IB_USE_INLINE=1 >opt/nccl.conf && ln -s ../opt/nccl.conf etc/nccl.conf"
        f" && tar -c etc opt | docker import --change 'ENV NCCL_SOCKET_IFNAME=eth0' - {image}",
    )
    arguments = {"image": image, "environment": {"NCCL_SOCKET_IFNAME": "enp1s0f0np0"}, "cache_dir": f"{kept}/options"}
    containers = "docker ps -aq | wc -l; docker volume ls -q | wc -l"
    try:
        before = ssh("spark1", containers)
        for words in (["--check"], [], []):
            hosts = module(inventory, "sparkstack.inference.fabric_environment_info", *words, arguments=arguments)
            found = [(entry["name"], entry["where"], entry["status"], entry["counts"]) for entry in hosts["spark1"]["findings"]]
            assert found == [
                ("NCCL_SOCKET_IFNAME", "ENV", "overridden", "enp1s0f0np0"),
                ("NCCL_IB_USE_INLINE", "/etc/nccl.conf", "left", "1"),
            ]
            assert (hosts["spark2"]["image"], hosts["spark2"]["problem"]) == (None, None)
            assert ssh("spark1", f"ls {kept}/options 2>/dev/null | wc -l") == ("0" if words else "1")
        assert ssh("spark1", containers) == before
        _code, output = role(inventory, tmp_path, "nccl_env", {"nccl_env_image": image})
        assert changes(output) == {"spark1": 0, "spark2": 0}
        shown = json.dumps(output)
        assert "the image's own NCCL_SOCKET_IFNAME=eth0 does not count" in shown
        assert "the image's own NCCL_IB_USE_INLINE=1 (/etc/nccl.conf) counts" in shown
    finally:
        ssh("spark1", f"docker rmi {image}; rm -rf {kept}")


@pytest.mark.long
def test_node_prep_four_steps(inventory: str, tmp_path: pathlib.Path) -> None:
    wanted = {
        "node_prep_cache_dir": "/var/tmp/facts-test/cache",
        "node_prep_docker_users": ["backup"],
        "node_prep_sysctl": {"vm.swappiness": 11},
        "node_prep_min_free_kbytes": 70000,
        "node_prep_swap": "disabled",
        "node_prep_protect_sshd": True,
    }
    kept = {node: ssh(node, "cd /proc/sys/vm; cat swappiness min_free_kbytes").split() for node in ("spark1", "spark2")}
    counts = []
    try:
        for node in ("spark1", "spark2"):
            ssh(node, "mkdir /var/tmp/facts-test; cp /etc/fstab /var/tmp/fstab; echo '/swap.img none swap sw 0 0' >>/etc/fstab")
        for words in (["--check", "--diff"], [], ["--check", "--diff"], []):
            code, output = role(inventory, tmp_path, "node_prep", wanted, *words)
            assert code == 0, failures(output)
            counts.append(changes(output))
        assert ssh("spark1", "stat -c '%a %U' /var/tmp/facts-test/*; id -nG backup; cat /proc/sys/vm/swappiness").splitlines() == [
            "700 root",
            "backup docker",
            "11",
        ]
        assert ssh("spark2", "cat /proc/sys/vm/min_free_kbytes; tail -1 /etc/fstab").splitlines() == ["70000", "# node_prep_swap: /swap.img none swap sw 0 0"]
        shown = ssh("spark2", "systemctl show -p MemoryMin ssh.service system.slice; systemctl show -p OOMScoreAdjust ssh.service; systemctl is-active ssh")
        assert shown.split() == ["MemoryMin=67108864", "MemoryMin=67108864", "OOMScoreAdjust=-1000", "active"]
    finally:
        for node in ("spark1", "spark2"):
            ssh(node, "rm -rf /var/tmp/facts-test /etc/sysctl.d/90-sparkstack.conf; gpasswd -d backup docker >/dev/null 2>&1 || :")
            ssh(node, "mv /var/tmp/fstab /etc/fstab; cd /etc/systemd/system; rm -rf ssh.service.d system.slice.d; systemctl daemon-reload")
            ssh(node, f"sysctl -qw vm.swappiness={kept[node][0]} vm.min_free_kbytes={kept[node][1]}")
    assert counts == [{"spark1": count, "spark2": count} for count in (9, 9, 0, 0)]


def test_node_prep_refuses_a_reserve_that_would_starve_the_node(inventory: str, tmp_path: pathlib.Path) -> None:
    code, output = role(inventory, tmp_path, "node_prep", {"node_prep_cache_dir": "/var/tmp/facts-test", "node_prep_min_free_kbytes": 1 << 40})
    assert code == 2
    assert failures(output)["spark1"].startswith("node_prep_min_free_kbytes is 1099511627776, more than 5 % of the ")
    assert ssh("spark1", "ls -d /var/tmp/facts-test 2>/dev/null || echo none") == "none"


def test_node_prep_says_what_is_missing(inventory: str, tmp_path: pathlib.Path) -> None:
    wanted = {"node_prep_cache_dir": "/var/tmp/facts-test", "node_prep_docker_users": ["nobodyofthatname"]}
    ssh("spark2", "systemctl stop docker.socket docker.service")
    try:
        code, output = role(inventory, tmp_path, "node_prep", {**wanted, "node_prep_docker_users": []}, "--check")
        facts = module(inventory, MODULES["gpu_memory"])
    finally:
        ssh("spark2", "systemctl start docker.socket docker.service")
    assert (code, list(failures(output))) == (2, ["spark2"])
    assert failures(output)["spark2"].startswith("Docker does not answer on /var/run/docker.sock of spark2")
    assert failures(output)["spark2"].endswith("install it, or start it with 'systemctl start docker'.")
    assert facts["spark2"]["ansible_facts"]["gpu_memory"]["unified"] is True
    code, output = role(inventory, tmp_path, "node_prep", wanted, "--check")
    assert code == 2
    assert failures(output)["spark1"] == ("spark1 has no user nobodyofthatname: correct node_prep_docker_users, or make the user first.")


def test_node_prep_finds_the_toolkit_missing(inventory: str, tmp_path: pathlib.Path) -> None:
    wanted = {"node_prep_cache_dir": "/var/tmp/facts-test"}
    strip = "import json; p='/etc/docker/daemon.json'; d=json.load(open(p)); d['runtimes'].pop('nvidia'); json.dump(d, open(p, 'w'))"
    ssh("spark2", "cp /etc/docker/daemon.json /var/tmp/; mv /usr/bin/nvidia-container-runtime-hook /var/tmp/")
    try:
        ssh("spark2", f"python3 -c {shlex.quote(strip)} && systemctl restart docker")
        code, output = role(inventory, tmp_path, "node_prep", wanted, "--check")
    finally:
        ssh("spark2", "mv /var/tmp/daemon.json /etc/docker/; mv /var/tmp/nvidia-container-runtime-hook /usr/bin/; systemctl restart docker")
    assert (code, list(failures(output))) == (2, ["spark2"])
    assert failures(output)["spark2"] == (
        "Docker on spark2 can't give a container the NVIDIA GB10: install the NVIDIA Container Toolkit,"
        " run 'nvidia-ctk runtime configure --runtime=docker' and restart Docker."
    )
