# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine images in a lab node: they load, and what the product asks of them is there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
VLLM, SGLANG = "sparkstack/vllm-cpu:0.32.0", "sparkstack/sglang-rehearsal:0.5.17"
pytestmark = [pytest.mark.lab, pytest.mark.engine]


def call(*words: str, timeout: float = 600) -> str:
    """Run a command and return what it said; it must end with code 0."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout
    return done.stdout


def node(command: str) -> str:
    return call(str(TESTS / "lab"), "shell", "spark1", command)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """A running lab with images and model."""
    call(str(TESTS / "lab"), "up")
    call(str(TESTS / "engine" / "install"))


def test_a_second_install_moves_nothing() -> None:
    output = call(str(TESTS / "engine" / "install"))
    assert re.findall(r"^(spark1 sparkstack/\S+) is there$", output, re.M) == [f"spark1 {VLLM}", f"spark1 {SGLANG}"]
    assert "loaded" not in output


def test_the_image_runs_its_engine() -> None:
    output = node(f"docker run --rm --network none {VLLM} vllm --version")
    assert output.splitlines()[-1] == "0.32.0+cpu"


def test_docker_knows_the_image_by_the_digest_that_was_written() -> None:
    (image,) = json.loads(node(f"docker image inspect {VLLM}"))
    built = dict(line.split(maxsplit=1) for line in call(str(TESTS / "engine" / "build")).splitlines())
    described = call("tar", "--extract", "--to-stdout", "--file", built["vllm-cpu"], "manifest.json")
    layers = [name.rpartition("/")[2] for name in json.loads(described)[0]["Layers"]]
    assert [layer.removeprefix("sha256:") for layer in image["RootFS"]["Layers"]] == layers
    assert len(layers) == 3
    assert image["Config"]["Entrypoint"] is None


def test_the_two_images_share_their_base_layer() -> None:
    layers = [json.loads(node(f"docker image inspect --format '{{{{json .RootFS.Layers}}}}' {tag}")) for tag in (VLLM, SGLANG)]
    assert layers[0][0] == layers[1][0]
    assert layers[0][1] != layers[1][1]


def test_the_rehearsal_refuses_what_its_version_lacks() -> None:
    shown = node(f"docker run --rm --network none {SGLANG} python3 -m sglang.launch_server --model /m --language-model-only || echo ended with $?")
    assert "sglang serve: error: unrecognized arguments: --language-model-only" in shown
    assert shown.endswith("ended with 2\n")


def test_the_rehearsal_never_passes_for_sglang() -> None:
    shown = node(f"docker run --rm --network none {SGLANG} python3 -m sglang.launch_server --help")
    assert shown.startswith("rehearsal: this is the lab's rehearsal of SGLang 0.5.17, not SGLang")
    assert node(f"docker run --rm --network none {SGLANG} python3 -c 'import sglang; print(sglang.__version__)'") == "0.5.17+rehearsal\n"
