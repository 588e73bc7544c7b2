# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs playbooks and the lab's tool for the tests, and reads what they say."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import time
import typing as t
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
LAB = ROOT / "tests" / "lab" / "lab"
DEPLOYMENT = "tiny-qwen3-moe"
RANKS = {"spark1": f"{DEPLOYMENT}-rank0", "spark2": f"{DEPLOYMENT}-rank1"}

usual: dict[str, t.Any] = {}
"""Extra variables of every run, under those that it is given: see the fixture 'rehearsed'."""

_RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)


@dataclass
class Play:
    """How a run of ansible-playbook went. Times in seconds."""

    code: int
    output: str
    seconds: float
    changed: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The output with its line breaks and YAML's quotes folded away, to look for a sentence in."""
        return re.sub(r"\s+", " ", self.output.replace("''", "'").replace('\\"', '"'))


def environment() -> dict[str, str]:
    """The environment of a user who installed the checkout's collection."""
    return {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": os.environ.get("SPARKSTACK_COLLECTIONS") or str(ROOT / "build" / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }


def inventory() -> str:
    """The path of the lab's inventory."""
    return lab("inventory").strip()


def playbook(name: str, *arguments: str, extra: t.Mapping[str, t.Any] | None = None, hosts: str | None = None) -> Play:
    """Run a playbook of the checkout on the lab.

    :param extra: extra variables. :param hosts: another inventory than the lab's.
    """
    # The last ones win: what a test says itself.
    command = [str(BIN / "ansible-playbook"), name, "-i", hosts or inventory(), *_variables(usual), *arguments, *_variables(extra)]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    return read(done.returncode, done.stdout + done.stderr, time.monotonic() - begin)


def _variables(extra: t.Mapping[str, t.Any] | None) -> list[str]:
    return ["-e", json.dumps(extra)] if extra else []


def read(code: int, output: str, seconds: float) -> Play:
    """What a run that has ended says of itself."""
    recap = _RECAP.findall(output)
    return Play(
        code=code,
        output=output,
        seconds=seconds,
        changed={host: int(changed) for host, _ok, changed, _unreachable, _failed in recap},
        failed={host: int(failed) for host, _ok, _changed, _unreachable, failed in recap},
    )


@contextlib.contextmanager
def playing(name: str, *arguments: str) -> t.Iterator[subprocess.Popen[str]]:
    """A run of a playbook in the background; it is killed, with all its forks, when the block ends."""
    command = [str(BIN / "ansible-playbook"), name, "-i", inventory(), *_variables(usual), *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env={**environment(), "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        try:
            yield run
        finally:
            os.killpg(run.pid, signal.SIGKILL)


def wait_for_line(run: subprocess.Popen[str], text: str, seconds: float) -> str:
    """Read a run's output until a line holds the text; what was read."""
    seen = []
    deadline = time.monotonic() + seconds
    assert run.stdout is not None
    for line in run.stdout:
        seen.append(line)
        if text in line:
            return "".join(seen)
        assert time.monotonic() < deadline, "".join(seen)
    raise AssertionError("".join(seen))


def lab(*words: str, ok: tuple[int, ...] = (0,)) -> str:
    """Run the lab's tool; its failure is the test's.

    :param ok: exit codes that are none.
    """
    done = subprocess.run([str(LAB), *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in ok, f"lab {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def install_engine(*words: str) -> None:
    """Have the engine's images on the head (or where the words say) and the model on all nodes; quick where they are."""
    done = subprocess.run([str(ROOT / "tests/lab/engine/install"), *words], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def built(product: str) -> pathlib.Path:
    """Where a product of the engine's build lies on this machine; it is built when it is not there."""
    done = subprocess.run([str(ROOT / "tests/lab/engine/build")], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return pathlib.Path(dict(line.split(maxsplit=1) for line in done.stdout.splitlines())[product])


def node(name: str, command: str) -> str:
    """The output of root's command on a node."""
    return lab("shell", name, f"sudo sh -c {shlex.quote(command)}")


def empty(*nodes: str) -> None:
    """No container is left on these nodes: whatever an earlier test has left serving holds ports and memory."""
    for name in nodes:
        node(name, "docker ps -q --filter status=paused | xargs -r docker unpause >/dev/null; docker ps -aq | xargs -r docker rm -f >/dev/null")


def containers(name: str) -> dict[str, dict[str, t.Any]]:
    """The containers of a node by name: its inspection in short."""
    ids = node(name, "docker ps --all --quiet").split()
    if not ids:
        return {}
    found = json.loads(node(name, f"docker inspect {' '.join(ids)}"))
    return {
        entry["Name"].lstrip("/"): {
            "id": entry["Id"],
            "running": entry["State"]["Running"],
            "started": entry["State"]["StartedAt"],
            "labels": entry["Config"]["Labels"],
            "host": entry["HostConfig"],
            "config": entry["Config"],
        }
        for entry in found
    }


def ranks() -> dict[str, dict[str, t.Any]]:
    """The deployment's containers by node."""
    return {name: containers(name)[rank] for name, rank in RANKS.items()}


def footprint() -> dict[str, str]:
    """All that a deployment could leave on the nodes: containers, images, and the files of a few places."""
    look = (
        "docker ps -a --no-trunc --format '{{.ID}} {{.Status}}' | sed 's/ seconds\\| minutes\\| hours//; s/[0-9]* *ago//; s/Up .*/Up/' | sort;"
        "docker images --no-trunc --quiet | sort;"
        "find /var/cache /var/lib/sparkstack /etc/sparkstack /etc/sysctl.d /etc/security /srv -printf '%p %s %T@ %m %u\\n' 2>/dev/null | sort"
    )
    return {name: node(name, look) for name in RANKS}
