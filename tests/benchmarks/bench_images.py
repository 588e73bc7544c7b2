#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What bringing an image to another node costs, against docker save piped to docker load over ssh.

Needs root, and six times --megabytes of disk: it makes the lab's nodes ready when they are not. Both ways are taken --turns times in turn, each to a
node without the image and with an empty page cache, and medians count. Of docker_image_sync the time is its own, from the first question of the receiver
to the loaded image; the whole run of Ansible is told beside. Prints to standard error each time, then these figures:

    image_first_vs_save_load  time of docker save | ssh docker load of an image that the node has nothing of, to that of docker_image_sync
    image_delta_bytes_share   of an image whose small top layer has changed, the bytes that moved
    image_delta_vs_save_load  time of docker save | ssh docker load of that to that of docker_image_sync

The image is of two layers: one large file, and many small ones with three tenths of its bytes. The lab's nodes share this machine's disk and processors.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import typing as t

import bench_staging as shared
from bench_staging import play

IMAGE = "bench/images"
REMOVE = f"docker images -q --filter reference='{IMAGE}' | sort -u | xargs -r docker rmi -f >/dev/null"
SMALL = 64_000


def build(tag: str, steps: str) -> None:
    """An image on the head. :param steps: shell commands that write into the folder C(files), and print the Dockerfile."""
    play.node(
        "spark1",
        f"set -e; rm -rf /root/bench; mkdir -p /root/bench/files; cd /root/bench; ({steps}) > Dockerfile;"
        f" docker build -q -t {IMAGE}:{tag} . >/dev/null; rm -rf /root/bench",
    )


def base(size: int) -> None:
    many = size * 3 // 10 // SMALL
    build(
        "base",
        f"head -c {size * 7 // 10} /dev/urandom > large; head -c {many * SMALL} /dev/urandom | split -a 5 -b {SMALL} - files/;"
        " printf 'FROM scratch\\nCOPY large /large\\nCOPY files /files\\nCMD [\"/large\"]\\n'",
    )


def quiet() -> None:
    """Nothing is left to be written or to be read without the disk."""
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def by_sync(tag: str) -> dict[str, t.Any]:
    quiet()
    found, whole = shared.module("docker_image_sync", {"image": f"{IMAGE}:{tag}", "progress": 0})
    return {**found["spark2"], "whole": whole}


def by_pipe(tag: str) -> float:
    quiet()
    return shared.timed(f"docker save {IMAGE}:{tag} | {shared.ssh()} root@{shared.address(2)} docker load")[0]


def tell(name: str, ours: list[dict[str, t.Any]], theirs: list[float]) -> float:
    """Write the times down; :returns: the ratio of the medians."""
    times = [run["seconds"] for run in ours]
    own, other = statistics.median(times), statistics.median(theirs)
    whole = statistics.median(run["whole"] for run in ours)
    sys.stderr.write(
        f"{name}: docker_image_sync {own:.2f} s ({', '.join(f'{seconds:.2f}' for seconds in times)}), {ours[-1]['bytes_sent']} bytes, whole run {whole:.1f} s;"
        f" docker save | ssh docker load {other:.2f} s ({', '.join(f'{seconds:.2f}' for seconds in theirs)})\n"
    )
    return other / own


def compare(turns: int, size: int) -> None:
    base(size)
    play.node("spark2", REMOVE)
    first: tuple[list[dict[str, t.Any]], list[float]] = ([], [])
    delta: tuple[list[dict[str, t.Any]], list[float]] = ([], [])
    for turn in range(turns):
        build(f"delta{turn}", f"head -c 20000 /dev/urandom > top; printf 'FROM {IMAGE}:base\\nCOPY top /top\\n'")
        first[0].append(by_sync("base"))
        delta[0].append(by_sync(f"delta{turn}"))
        play.node("spark2", REMOVE)
        first[1].append(by_pipe("base"))
        delta[1].append(by_pipe(f"delta{turn}"))
        play.node("spark2", REMOVE)
    shares = [run["bytes_sent"] / run["bytes_total"] for run in delta[0]]
    told = tell(f"image of {size / 1e9:.1f} GB, nothing of it there", *first)
    sys.stdout.write(f"figure image_first_vs_save_load {told:.2f} ratio\n")
    sys.stdout.write(f"figure image_delta_bytes_share {statistics.median(shares):.7f} share\n")
    told = tell("the same with 20 kB changed", *delta)
    sys.stdout.write(f"figure image_delta_vs_save_load {told:.2f} ratio\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the image (default: 1000)")
    parser.add_argument("--turns", type=int, default=3, help="how often each way is taken (default: 3)")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("bench_images: the lab's nodes need root: run it with sudo.")
    play.lab("up", "--nodes", "2")
    play.empty("spark1", "spark2")
    shared.trust()
    try:
        compare(options.turns, options.megabytes * 10**6)
    finally:
        for node in ("spark1", "spark2"):
            play.node(node, REMOVE)
        # BuildKit's cache holds the layers too.
        play.node("spark1", "docker builder prune -af >/dev/null")
        shared.distrust()


if __name__ == "__main__":
    main()
