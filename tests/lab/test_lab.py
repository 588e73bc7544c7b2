# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab tool on real nodes: every word must change what a node, or its neighbour, sees.

Runs on the lab of the current state folder (spark1 and spark2 keep their disks, spark3 is made and reset here) and
leaves it up with two nodes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parent / "lab"
pytestmark = pytest.mark.lab


def lab(*words: str, code: int = 0, timeout: float = 120, **environment: str) -> str:
    """Call the tool; its whole output."""
    done = subprocess.run(
        [str(LAB), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def ssh(node: str, command: str, code: int = 0) -> str:
    return lab("shell", node, command, code=code)


def nodes() -> dict[str, dict[str, t.Any]]:
    text = subprocess.run([str(LAB), "status", "--json"], stdout=subprocess.PIPE, text=True).stdout
    return {row["name"]: row for row in json.loads(text)["nodes"]}


def state_folder() -> Path:
    text = subprocess.run([str(LAB), "status", "--json"], stdout=subprocess.PIPE, text=True).stdout
    return Path(json.loads(text)["state"])


def pings(node: str, address: str, seconds: int = 1) -> bool:
    """Whether an answer comes within so many seconds."""
    return " 1 received" in lab("shell", node, f"ping -qc1 -w{seconds} {address} || :")


def figure(pattern: str, text: str) -> float:
    """The number that the pattern's group finds."""
    match = re.search(pattern, text)
    assert match, text
    return float(match[1])


def processes() -> dict[int, str]:
    """Command lines of all that belongs to the lab's power supplies, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"keeper" in words[:3] and str(LAB).encode() in words[:3] or words[0].endswith(b"systemd-nspawn"):
            found[int(folder.name)] = b" ".join(words).decode()
    return found


def left_behind() -> list[str]:
    """All traces that a lab could leave on the machine outside its state folder."""
    disks = str(state_folder() / "nodes")
    traces = [str(path) for path in Path("/run/netns").glob("*") if re.fullmatch(r"spark\d+|sparklab", path.name)]
    traces += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if disks in line]
    traces += [str(path) for pattern in ("sparklab", "*/sparklab") for path in Path("/sys/fs/cgroup").glob(pattern)]
    traces += [str(path) for path in Path("/run/systemd/nspawn").glob("*/spark*")]
    traces += list(processes().values())
    traces += [path for path in ("/run/sparkstack-lab", "/sys/class/net/lab-mgmt") if os.path.lexists(path)]
    return traces


@pytest.fixture(scope="module", autouse=True)
def two_nodes() -> t.Iterator[None]:
    lab("up", "--nodes", "2", timeout=300)
    yield
    lab("up", "--nodes", "2")


def test_up_again_touches_nothing_and_status_is_quick() -> None:
    before = nodes()
    assert all(row["ready"] for row in before.values())
    assert before["spark1"]["boot_id"] != before["spark2"]["boot_id"]
    lab("up")
    assert {name: row["boot_id"] for name, row in nodes().items()} == {name: row["boot_id"] for name, row in before.items()}
    started = time.monotonic()
    lab("status")
    assert time.monotonic() - started < 1


def test_ssh_checks_the_host_key(tmp_path: Path) -> None:
    state = state_folder()
    assert "StrictHostKeyChecking=yes" in Path(lab("inventory").strip()).read_text()
    command = ["ssh", "-i", str(state / "key"), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    known = (state / "known_hosts").read_text().splitlines()
    wrong = tmp_path / "known_hosts"
    wrong.write_text(known[0].split()[0] + " " + " ".join(known[1].split()[1:]) + "\n")  # spark2's key at spark1's address
    for file, code, words in ((state / "known_hosts", 0, "spark1"), (wrong, 255, "Host key verification failed")):
        done = subprocess.run([*command, "-o", f"UserKnownHostsFile={file}", "nvidia@10.77.0.11", "sudo hostname"], capture_output=True, text=True)
        assert done.returncode == code
        assert words in done.stdout + done.stderr


def test_networks() -> None:
    def route(address: str) -> str:
        return subprocess.run(["ip", "route", "get", address], stdout=subprocess.PIPE, text=True).stdout

    assert "lab-mgmt" in route("10.77.0.11")
    assert "lab-mgmt" not in route("192.168.200.11")  # the fabric is not the controller's
    for address in ("10.77.0.12", "192.168.200.12"):
        assert pings("spark1", address, 30)
    ssh("spark1", "ping -qc1 -W1 -M do -s 8972 192.168.200.12")
    assert "enP7s7" in ssh("spark1", "ip route show default")
    started = time.monotonic()
    ssh("spark1", "nc -w5 -z 1.1.1.1 443", code=1)  # no world outside, and told so at once
    assert time.monotonic() - started < 2


def test_stand_ins_change_live_and_survive_a_reboot_but_settings_of_the_kernel_do_not() -> None:
    before = nodes()["spark2"]["boot_id"]
    lab("set", "spark2", "gpu.driver=580.142", "meminfo.MemAvailable=100G", "rdma.ports/1/rate=100 Gb/sec (4X EDR)", "infiniband_dev=true")
    look = (
        "nvidia-smi --query-gpu=driver_version --format=csv,noheader; grep MemAvailable /proc/meminfo; "
        "cat /sys/class/infiniband/rocep1s0f0/ports/1/rate; stat -c %t:%T /dev/infiniband/uverbs0; ls /sys/class/net"
    )
    expected = "580.142\nMemAvailable:   104857600 kB\n100 Gb/sec (4X EDR)\ne7:c0\ndocker0\nenP7s7\nenp1s0f0np0\nlo\n"
    assert ssh("spark2", look) == expected
    machine = Path("/proc/sys/vm/swappiness").read_text()
    written = "7" if machine.strip() != "7" else "8"
    ssh("spark2", f"sudo sysctl -qw vm.swappiness={written} net.ipv4.tcp_syncookies=0 && sudo nft add table inet mine")
    assert ssh("spark2", "cat /proc/sys/vm/swappiness").strip() == written
    assert Path("/proc/sys/vm/swappiness").read_text() == machine
    lab("reboot", "spark2")
    assert nodes()["spark2"]["boot_id"] != before
    assert ssh("spark2", look) == expected
    assert ssh("spark2", "cat /proc/sys/vm/swappiness /proc/sys/net/ipv4/tcp_syncookies") == machine + "1\n"
    assert "mine" not in ssh("spark2", "sudo nft list tables")
    lab("set", "spark2", "gpu.driver=", "meminfo.MemAvailable=", "rdma.ports/1/rate=", "infiniband_dev=")
    assert "[N/A]" in ssh("spark2", "nvidia-smi --query-gpu=memory.used --format=csv,noheader")
    real = int(figure(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text()))
    assert f"{real} kB" in ssh("spark2", "cat /proc/meminfo; ! test -e /dev/infiniband")


def test_power_cut() -> None:
    before = nodes()["spark2"]["boot_id"]
    ssh("spark2", "echo kept > kept; sync")
    lab("power-cut", "spark2")
    assert nodes()["spark2"]["power"] == "off"
    lab("status", code=1)
    assert ssh("spark1", "cat /sys/class/net/enp1s0f0np0/carrier /sys/class/infiniband/rocep1s0f0/ports/1/state") == "0\n1: DOWN\n"
    lab("start", "spark2")
    after = nodes()["spark2"]
    assert after["ready"]
    assert after["boot_id"] != before
    assert ssh("spark2", "cat kept; rm kept") == "kept\n"
    assert pings("spark1", "192.168.200.12", 30)


def test_cut_and_heal() -> None:
    lab("cut", "spark1")
    for node in ("spark1", "spark2"):  # one cable: both ends see it, and their cards are up all the same
        assert re.search(r"<NO-CARRIER,.*\bUP>", ssh(node, "ip -br link show enp1s0f0np0"))
    assert not pings("spark1", "192.168.200.12")
    assert pings("spark1", "10.77.0.12", 30)
    lab("heal", "spark1")
    assert pings("spark1", "192.168.200.12", 30)


def test_freeze_and_thaw() -> None:
    lab("freeze", "spark2")
    assert nodes()["spark2"]["power"] == "frozen"
    with pytest.raises(subprocess.TimeoutExpired):
        lab("shell", "spark2", "true", timeout=2)
    lab("thaw", "spark2")
    assert ssh("spark2", "hostname") == "spark2\n"


def test_loss_and_rate() -> None:
    def lost() -> float:
        return figure(r"([\d.]+)% packet loss", ssh("spark1", "ping -qc60 -i0.01 -W1 192.168.200.12 || :"))

    def seconds() -> float:
        with subprocess.Popen(
            [str(LAB), "shell", "spark2", "timeout 20 nc -l 5001 | wc -c"], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        ) as receiver:
            ssh("spark2", "until ss -ltn | grep -q :5001; do sleep 0.1; done")
            started = time.monotonic()
            ssh("spark1", "head -c 10000000 /dev/zero | nc -N 192.168.200.12 5001")
            assert receiver.communicate(timeout=20)[0].strip() == "10000000"
        return time.monotonic() - started

    assert lost() == 0
    lab("loss", "spark2", "40")
    assert 15 < lost() < 65
    lab("loss", "spark2", "0")
    assert lost() == 0
    free = seconds()
    lab("rate", "spark2", "80mbit")
    limited = seconds()
    lab("rate", "spark2", "off")
    assert limited > 0.8  # 10 MB at 10 MB/s are 1 s, less what the buckets hold
    assert free < limited > seconds()


def test_clock_is_wrong_for_commands_and_new_containers_but_not_for_docker() -> None:
    image = "lab/date:test"
    look = f"date +%s; sudo date +%s; docker run --rm {image} date +%s"
    try:
        lab("clock", "spark2", "300")
        files = "$(ldd /bin/date | grep -o '/[^ :]*') /bin/date"
        ssh("spark2", f"tar -ch {files} 2>/dev/null | docker import - {image}")
        off = [int(word) - time.time() for word in ssh("spark2", look).split()]
        created = f"date --utc --date $(docker run --detach --name clock {image} date | xargs docker inspect --format '{{{{.Created}}}}') +%s"
        asked = int(ssh("spark2", created)) - time.time()
    finally:
        lab("clock", "spark2", "0")
        ssh("spark2", "docker rm -f clock")
    assert [round(value / 300) for value in off] == [1, 1, 1]
    assert abs(asked) < 30
    assert all(abs(int(word) - time.time()) < 30 for word in ssh("spark2", look).split())
    ssh("spark2", f"docker rmi -f {image}")


def test_disk_is_slow_for_running_and_new_containers() -> None:
    image, size = "lab/dd:test", 3_000_000
    ssh("spark2", f"tar -ch $(ldd /bin/dd /bin/sleep | grep -o '/[^ ]*' | sort -u) /bin/dd /bin/sleep 2>/dev/null | docker import - {image}")
    fresh = "sudo dd if=/srv/slow iflag=nocache count=0 status=none"
    read = "dd if=/srv/slow of=/dev/null bs=64k"

    def seconds(command: str) -> float:
        return figure(r"copied, ([\d.]+) s", ssh("spark2", f"{fresh}; {command} 2>&1"))

    ssh("spark2", f"sudo sh -c 'head -c {size} /dev/urandom > /srv/slow; sync'; docker run -d --name slow -v /srv:/srv {image} sleep 120")
    try:
        free = seconds(f"docker exec slow {read}")
        lab("disk", "spark2", "1M")
        running, new = seconds(f"docker exec slow {read}"), seconds(f"docker run --rm -v /srv:/srv {image} {read}")
        lab("disk", "spark2", "off")
        assert free < 1 < 2 < min(running, new)
        assert seconds(f"docker exec slow {read}") < 1
    finally:
        lab("disk", "spark2", "off")
        ssh("spark2", f"docker rm -f slow; docker rmi -f {image}; sudo rm /srv/slow")


def test_isolated_node_hangs_for_ssh_and_works_for_its_peer() -> None:
    lab("isolate", "spark2")
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            lab("shell", "spark2", "true", timeout=2)
        assert pings("spark1", "192.168.200.12", 30)
    finally:
        lab("rejoin", "spark2")
    assert ssh("spark2", "hostname") == "spark2\n"


def test_memory_limit_kills_and_only_there() -> None:
    kills = nodes()["spark2"]["oom_kills"]
    size = nodes()["spark2"]["memory_limit"]
    fill = "python3 -c 'bytearray(600 << 20)'; exit $?"  # else ssh turns the signal into a 255
    lab("memory", "spark2", "400M")
    try:
        ssh("spark2", fill, code=137)
        rows = nodes()
    finally:
        lab("memory", "spark2", str(size))
    assert rows["spark2"]["oom_kills"] == kills + 1
    assert rows["spark2"]["memory_limit"] == 400 << 20
    assert rows["spark2"]["ready"]
    assert rows["spark1"]["oom_kills"] == 0
    ssh("spark2", fill)


def test_docker_runs_what_a_spark_would_run(tmp_path: Path) -> None:
    ssh("spark1", "tar -ch $(ldd /bin/true | grep -o '/[^ ]*') /bin/true 2>/dev/null | docker import - lab/true:test")
    run = "docker run --rm --ipc host --network host --cap-add SYS_NICE --gpus all --init --ulimit memlock=-1:-1 --ulimit stack=67108864"
    ssh("spark1", f"{run} lab/true:test /bin/true")
    ssh("spark1", f"{run} --privileged --ulimit nofile=1048576:1048576 lab/true:test /bin/true")
    archive = tmp_path / "image.tar"
    with open(archive, "wb") as stream:
        subprocess.run([str(LAB), "shell", "spark1", "docker save lab/true:test"], stdout=stream, check=True)
    assert "lab/true:test" in lab("put-image", "spark2", str(archive))
    identity = "docker image inspect -f '{{.Id}}' lab/true:test"
    assert ssh("spark1", identity) == ssh("spark2", identity)
    for node in ("spark1", "spark2"):
        ssh(node, "docker rmi -f lab/true:test")


def test_three_nodes_and_reset(tmp_path: Path) -> None:
    before = nodes()
    lab("up", "--nodes", "3")
    rows = nodes()
    assert list(rows) == ["spark1", "spark2", "spark3"]
    assert rows["spark1"]["boot_id"] == before["spark1"]["boot_id"]
    assert "spark3 ansible_host=10.77.0.13" in Path(lab("inventory").strip()).read_text()
    lab("cut", "spark3")  # a switch: the others go on
    assert not pings("spark3", "192.168.200.11")
    assert pings("spark1", "192.168.200.12", 30)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "shard").write_text("weights")
    lab("put-dir", "spark3", str(tmp_path / "model"), "/srv/models/m")
    (tmp_path / "model" / "shard").rename(tmp_path / "model" / "shard2")
    lab("put-dir", "spark3", str(tmp_path / "model"), "/srv/models/m")
    assert ssh("spark3", "cd /srv/models/m; ls; cat *") == "shard2\nweights"
    lab("reset", "spark3")
    ssh("spark3", "test -e /srv/models", code=1)
    assert pings("spark3", "192.168.200.11", 30)  # a new node has no faults, and the host key that is known
    lab("up", "--nodes", "2")
    assert list(nodes()) == ["spark1", "spark2"]
    assert not Path("/run/netns/spark3").exists()


def test_one_sentence_for_a_mistake(tmp_path: Path) -> None:
    for words, text in (
        (("cut", "spark9"), "There is no spark9; the lab has 2 nodes"),
        (("memory", "spark1", "lots"), "is no size"),
        (("loss", "spark1", "200"), "from 0 to 100"),
        (("set", "spark1", "colour=red"), "is no stand-in"),
        (("up", "--nodes", "0"), "--nodes must be from 1"),
        (("put-image", "spark1", "/nonexistent"), "no image archive"),
        (("up", "--memory", "900G"), "do not fit into this machine"),
    ):
        output = lab(*words, code=1)
        assert text in output
        assert len(output.splitlines()) == 1
    assert "take it down first" in lab("up", code=1, SPARKSTACK_LAB=str(tmp_path / "other"))


@pytest.mark.parametrize("victim", ["keeper", "systemd-nspawn", "tool"])
def test_down_leaves_nothing_also_after_a_crash(victim: str) -> None:
    if victim == "tool":
        lab("down")
        with subprocess.Popen([str(LAB), "up"], stdout=subprocess.DEVNULL) as tool:
            while not any("keeper" in line for line in processes().values()):
                assert tool.poll() is None
            tool.kill()
    else:
        for pid, line in processes().items():
            if victim in line and "spark1" in line:
                os.kill(pid, signal.SIGKILL)
        # The kernel takes a moment to end it, and with it the lock that tells of it.
        deadline = time.monotonic() + 10
        while victim != "systemd-nspawn" and nodes()["spark1"]["power"] == "on":
            assert time.monotonic() < deadline
            time.sleep(0.1)
    lab("down")
    assert left_behind() == []
    lab("down")
    lab("up")
    assert pings("spark1", "192.168.200.12", 30)


def test_up_repairs_a_crash() -> None:
    before = nodes()
    for pid, line in processes().items():
        if "keeper" in line and "spark2" in line:
            os.kill(pid, signal.SIGKILL)
    lab("up")
    after = nodes()
    assert after["spark1"]["boot_id"] == before["spark1"]["boot_id"]
    assert after["spark2"]["boot_id"] != before["spark2"]["boot_id"]
    assert after["spark2"]["ready"]
