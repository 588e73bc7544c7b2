# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is said of log files that can't be read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pathlib

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _log_files as subject

CASE = pathlib.Path(__file__).parents[3] / "fixtures" / "logs" / "sglang-gpu" / "ready-cold"
TEXT = (CASE / "head.log").read_bytes()


@pytest.mark.parametrize(
    "start, sentence",
    [
        (gzip.compress(TEXT, mtime=0), "The log of a, /x, is compressed: unpack it first (gunzip)."),
        (bz2.compress(TEXT), "The log of a, /x, is compressed: unpack it first (bunzip2)."),
        (lzma.compress(TEXT), "The log of a, /x, is compressed: unpack it first (unxz)."),
        (TEXT[:200].decode().encode("utf-16"), "The log of a, /x, is UTF-16: write it anew as UTF-8 (iconv -f UTF-16 -t UTF-8)."),
        (b"\x7fELF\x02\x01\x01\0\0\0", "The log of a, /x, is no text: name the file that docker logs gave."),
        (TEXT, ""),
        (TEXT[:600] + b"\0" * 100, ""),
        (b"", ""),
    ],
)
def test_what_is_no_text(start: bytes, sentence: str) -> None:
    assert subject.unreadable("a", "/x", start) == sentence


def test_what_cannot_be_opened(tmp_path: pathlib.Path) -> None:
    told = []
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(OSError) as caught:
            path.read_bytes()
        told.append(subject.refused("a", str(path), caught.value))
    assert told == [f"The log of a, {tmp_path}, is a folder: name the file in it.", f"There is no log {tmp_path}/none for a: correct its path."]
    assert subject.refused("a", "/x", PermissionError(13, "Permission denied")) == "The log of a cannot be read: [Errno 13] Permission denied."
