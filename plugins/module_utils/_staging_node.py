# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What model_sync has done on a node besides the copy itself: what is there, rsync where it is wanted, and the tidying up."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent
from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer
from ansible_collections.sparkstack.inference.plugins.module_utils._page_cache import drop_files
from ansible_collections.sparkstack.inference.plugins.module_utils._reach import addresses
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_arrival import own
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import FOLDER
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_sum import available
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_tree import TreeError, behind_link, look, problem_of, problem_there

Data = t.Dict[str, t.Any]
RunCommand = t.Callable[..., t.Tuple[int, str, str]]


def view(path: str, source: bool, own_addresses: t.Sequence[str]) -> Data:
    """What is there, what runs, and which digests and addresses this node has. :raises TreeError: with a sentence."""
    prefixes = {entry.address: entry.prefix for entry in addresses()}
    # One that the kernel does not tell is taken for a network of its own.
    known = [{"address": address, "prefix": prefixes.get(address, 128 if ":" in address else 32)} for address in own_addresses]
    for address in own_addresses:
        try:
            with socket.socket(_transfer.family(address), socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
        except OSError as error:
            raise TreeError(_transfer.bind_sentence(address, 0, error)) from error
    running = agent.ask(path, {"do": "watch", "seconds": 0})
    return {**look(path, source), "rails": known, "sums": list(available()), "running": running}


def begin(params: Data) -> Data:
    """Start the node's part of a copy; :returns: C(ports), the port of each address. :raises TreeError: with a sentence."""
    _check(params)
    running = agent.ask(params["path"], {"do": "end"})
    if running is not None and not running["ended"]:
        raise TreeError(f"A copy of {params['path']} runs on this node already: run this again to see it to its end.")
    names = ("path", "source", "files", "sum", "token", "callers", "streams", "dry", "reread", "certificate", "chunk")
    given: Data = {name: params[name] for name in names}
    given.update(key=params["private_key"], connect=params["connect_timeout"], stall=params["stall_timeout"])
    try:
        one = agent.Agent(given)
    except OSError as error:
        raise TreeError(f"A copy of {params['path']} begins on this node already ({error.strerror}): run this again.") from error
    try:
        # Nobody asks the last node of a chain.
        ports = {address: one.counter.open(address, params["port"]) for address in params["addresses"]} if params["callers"] else {}
    except BaseException:
        one.close()
        raise
    agent.start(one)
    return {"ports": ports}


def _check(params: Data) -> None:
    """Believe no name that another node has told. :raises TreeError: with a sentence, before anything is touched."""
    for entry in params["files"]:
        problem = problem_of(entry["name"])
        if not problem and not params["source"] and entry["mine"]:
            problem = problem_there(params["path"], entry["name"])
        if problem:
            raise TreeError(problem)


def told(path: str, message: Data, seconds: float = 0) -> Data:
    """What the agent answers. :raises TreeError: when it is gone."""
    answer = agent.ask(path, message, seconds)
    if answer is None:
        raise TreeError(f"The copy to {path} is gone from this node, as after a restart: run this again, what has arrived is not sent twice.")
    return answer


def settle(path: str, delete: t.Sequence[str], drop: t.Sequence[str]) -> t.List[str]:
    """Delete files that the source does not have, and the hidden folder; give back the page cache of others; :returns: what was deleted.

    What lies behind a link to another folder is not this folder's, and stays.

    :raises TreeError: for a name that leads out of the folder.
    """
    deleted = []
    for name in delete:
        problem = problem_of(name)
        if problem:
            raise TreeError(problem)
        if behind_link(path, name):
            continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
            deleted.append(name)
        folder = os.path.dirname(name)
        while folder:
            try:
                os.rmdir(os.path.join(path, folder))
            except OSError:
                break
            folder = os.path.dirname(folder)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.join(path, FOLDER))
    drop_files(os.path.join(path, name) for name in drop)
    return deleted


def rsync(run: RunCommand, program: t.Optional[str], params: Data) -> Data:
    """Fetch by rsync over ssh, as this user; the names were chosen by the controller. :raises TreeError: with rsync's last words.

    What rsync writes lies in the hidden folder until it is whole, and on the disk where this rsync can wait for that (since 3.2.4).
    """
    if not program:
        raise TreeError("rsync is not on this node: install it, or take `transport: fabric`.")
    _check(params)
    unfinished = os.path.join(params["path"], FOLDER, "rsync")
    temporary = os.path.join(params["path"], FOLDER, "rsync-now")
    own(unfinished)
    with _alone(unfinished, params["path"]) as lock:
        # An rsync that was killed leaves its files there, under names that the next one does not know.
        shutil.rmtree(temporary, ignore_errors=True)
        own(temporary)
        try:
            return _rsync(functools.partial(run, pass_fds=(lock,)), program, params, unfinished, temporary)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.rmdir(unfinished)


@contextlib.contextmanager
def _alone(folder: str, path: str) -> t.Iterator[int]:
    """Hold a folder as long as this and rsync live, which outlives a module that is killed. :raises TreeError: when another one holds it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TreeError(f"An rsync to {path} runs on this node already: wait for its end, or end it, and run this again.") from error
        yield lock
    finally:
        os.close(lock)


def _rsync(run: RunCommand, program: str, params: Data, unfinished: str, temporary: str) -> Data:
    _code, offered, _said = run([program, "--help"])
    host = "[{}]".format(params["source_address"]) if ":" in params["source_address"] else params["source_address"]
    names = [entry["name"] for entry in params["files"] if entry["mine"]]
    command = [
        program,
        "--times",
        "--copy-links",
        "--from0",
        "--files-from=-",
        "--no-implied-dirs",
        "--protect-args",
        f"--timeout={params['stall_timeout']}",
        "--perms",
        "--chmod=D755,F644",
        f"--partial-dir={unfinished}",
        f"--temp-dir={temporary}",
        *(["--fsync"] if "--fsync" in offered else []),
        "--out-format=%i %l %n",
    ]
    command += ["--rsh=ssh -o BatchMode=yes"] + (["--checksum"] if params["reread"] else []) + list(params["rsync_options"])
    command += ["{}:{}/".format(host, params["source_path"].rstrip("/")), params["path"].rstrip("/") + "/"]
    code, out, said = run(command, data="\0".join(names) + "\0", binary_data=True)
    if code:
        last = [line for line in said.strip().splitlines() if line.strip()]
        reason = last[0] if last else "no reason"
        raise TreeError(
            f"rsync from {params['source_address']} ended with {code} ({reason}): see that `ssh {params['source_address']}` works here without a question."
        )
    paths = [os.path.join(params["path"], name) for name in names]
    for path in paths:
        # The kernel gives up no page that is not on the disk yet.
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    drop_files(paths)
    return itemized(out)


def itemized(out: str) -> Data:
    """What rsync says it has done: C(moved), C(touched) (names), C(received) (the bytes of the files, of which it may have sent a part).

    ">f+++++++++ 4998779744 model-00001-of-00039.safetensors" came; ".f..t...... 1210 config.json" only got another time. Source: rsync(1), "-i".
    """
    found: Data = {"moved": [], "touched": [], "received": 0}
    for line in out.splitlines():
        what, size, name = (line.split(" ", 2) + ["", ""])[:3]
        if what[1:2] == "f" and size.isdigit():
            found["moved" if what[0] in "<>" else "touched"].append(name)
            found["received"] += int(size) if what[0] in "<>" else 0
    return found
