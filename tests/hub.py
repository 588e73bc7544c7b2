# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub of one repository, for tests: the part of the Hub's HTTP interface that huggingface_hub uses to read, and its troubles.

`python tests/hub.py ADDRESS PORT FOLDER` serves a folder as lab/tiny to whoever asks, until it is interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import struct
import sys
import threading
import time
import typing as t
from urllib.parse import unquote, urlsplit

REPO = "lab/tiny"


def safetensors(content: bytes) -> bytes:
    """A file of weights with one tensor of these bytes."""
    header = json.dumps({"model.layers.0.weight": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}}).encode()
    return struct.pack("<Q", len(header)) + header + content


def tiny_model(seed: int = 0, shard: int = 300_000) -> dict[str, bytes]:
    """The files of a model of two shards, and what comes with it."""
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    # Never the same in two places, so that bytes in the wrong place are seen.
    shards = {name: safetensors(hashlib.shake_128(f"{seed} {name}".encode()).digest(shard)) for name in names}
    index = {"metadata": {"total_size": 2 * shard}, "weight_map": {f"model.layers.{number}.weight": name for number, name in enumerate(names)}}
    return {
        "config.json": json.dumps({"architectures": ["Tiny"], "model_type": "tiny", "num_hidden_layers": 2}).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "README.md": b"# tiny\n",
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "original/consolidated.00.pth": b"the same weights once more" * 100,
        **shards,
    }


class Hub:
    """A hub and its CDN on two ports of one address. What a test sets is read at each request."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}
        self.token: str | None = None
        self.gated = False
        self.down = 0  # An HTTP status that everything is answered with.
        self.cut: dict[str, list[int]] = {}  # By file: after how many bytes each of its next loads breaks off.
        self.wrong: dict[str, int] = {}  # By file: how many of its next loads have a wrong byte.
        self.rate: float | None = None  # Bytes a second of one load.
        self.silent = threading.Event()  # Loads get no bytes any more.
        self.xet = False
        self.meagre = False  # As some mirrors do: the listing has the names only.
        self.seen: list[tuple[str, str, str | None, str | None]] = []
        """Of each request: the method, the path, its Range and its Authorization."""
        self._servers = [self._server(address, number) for number in (port, 0)]
        self.endpoint, self.cdn = (f"http://{address}:{server.server_port}" for server in self._servers)

    def _server(self, address: str, port: int) -> http.server.ThreadingHTTPServer:
        server = http.server.ThreadingHTTPServer((address, port), type("Handler", (_Handler,), {"hub": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        """A new commit at the end of a branch; returns its name."""
        name = hashlib.sha1(f"{len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[name] = dict(files)
        self.refs[ref] = name
        return name

    def loads(self, suffix: str = "") -> list[tuple[str, str | None]]:
        """The path's end and Range of each GET of a file."""
        return [(path.rsplit("/", 1)[-1], span) for method, path, span, _auth in self.seen if method == "GET" and "/api/" not in path and path.endswith(suffix)]

    def close(self) -> None:
        self.silent.clear()
        for server in self._servers:
            server.shutdown()
            server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def large(name: str) -> bool:
    """Kept as LFS, and so loaded from the CDN."""
    return name.endswith((".safetensors", ".pth"))


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: t.Any) -> None:
        return

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        auth = self.headers.get("Authorization")
        hub.seen.append((self.command, path, self.headers.get("Range"), auth))
        if hub.down:
            return self._refuse(hub.down, "")
        if path.startswith("/cdn/"):
            # As a signed address: it needs no token, and gets none.
            return self._refuse(400, "") if auth else self._load(*path.removeprefix("/cdn/").split("/", 1), signed=True)
        if hub.token and auth != f"Bearer {hub.token}":
            return self._refuse(401, "RepoNotFound")
        if hub.gated:
            return self._refuse(403, "GatedRepo")
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = listing or file
        if not found or found[1] != REPO:
            return self._refuse(404, "RepoNotFound")
        commit = hub.refs.get(found[2], found[2])
        if commit not in hub.commits:
            return self._refuse(404, "RevisionNotFound")
        return self._list(commit) if listing else self._load(commit, found[3])

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _list(self, commit: str) -> None:
        siblings: list[dict[str, t.Any]] = []
        for name, content in self.hub.commits[commit].items():
            told: dict[str, t.Any] = {"rfilename": name}
            if not self.hub.meagre:
                told.update(size=len(content), blobId=blob_id(content))
                if large(name):
                    told.update(blobId="0" * 40, lfs={"sha256": sha256(content), "size": len(content), "pointerSize": 134})
            siblings.append(told)
        answer = {"id": REPO, "modelId": REPO, "sha": commit, "private": False, "downloads": 0, "likes": 0, "tags": [], "siblings": siblings}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _load(self, commit: str, name: str, signed: bool = False) -> None:
        hub = self.hub
        content = hub.commits[commit].get(name)
        if content is None:
            return self._refuse(404, "EntryNotFound")
        content = self._spoilt(name, content)
        if large(name) and not signed:
            self.send_response(302)
            self.send_header("Location", f"{hub.cdn}/cdn/{commit}/{name}?Signature=s3cret")
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Linked-Etag", f'"{sha256(hub.commits[commit][name])}"')
            if hub.xet:
                self.send_header("X-Xet-Hash", sha256(hub.commits[commit][name]))
                self.send_header("X-Xet-Refresh-Route", f"{hub.endpoint}/api/models/{REPO}/xet-read-token/{commit}")
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        begin = int(span[1]) if span else 0
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{sha256(content) if large(name) else blob_id(content)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        if self.command == "GET":
            self._send(name, content[begin:])
        return None

    def _spoilt(self, name: str, content: bytes) -> bytes:
        if self.command == "GET" and self.hub.wrong.get(name, 0) > 0:
            self.hub.wrong[name] -= 1
            return content[:-1] + bytes([content[-1] ^ 1])
        return content

    def _send(self, name: str, content: bytes) -> None:
        cuts = self.hub.cut.get(name)
        end = cuts.pop(0) if cuts else None
        step = max(4096, int((self.hub.rate or 0) / 50)) if self.hub.rate or self.hub.silent.is_set() else 1 << 20
        with contextlib.suppress(OSError):
            for at in range(0, len(content if end is None else content[:end]), step):
                while self.hub.silent.is_set():
                    time.sleep(0.05)
                self.wfile.write(content[at : at + step if end is None else min(at + step, end)])
                if self.hub.rate:
                    time.sleep(step / self.hub.rate)
        if end is not None:
            self.close_connection = True


if __name__ == "__main__":
    given = pathlib.Path(sys.argv[3])
    served = Hub(sys.argv[1], int(sys.argv[2]))
    told = served.commit({str(path.relative_to(given)): path.read_bytes() for path in sorted(given.rglob("*")) if path.is_file()})
    print(f"{served.endpoint} serves {REPO} at {told}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
