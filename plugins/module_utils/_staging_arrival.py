# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""One file on its way to a node: what is left to do for it, and the steps by which it gets its name.

A file is written in the hidden folder, chunk by chunk in any order. It gets its final name in one step, when each of its chunks has the digest that
the source told, and all of it is on the disk. A file that is there already is compared first, chunk by chunk, and left alone when it is equal; else
what is equal of it is copied here, and only the rest crosses the network. The old file stays what it is, for who reads it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import Buffer, Plain, chunks, length
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_tree import existing

OPEN, COMPARE, LOCAL, RECHECK, FETCH, PROVE = "open", "compare", "local", "recheck", "fetch", "prove"
"""What can be left to do: begin the file; compare a chunk of the old file with the source's; copy one from there; compare one that an earlier run
left with the source's; get one over the network; read one back from the disk."""


class Step(t.NamedTuple):
    """One thing that is left to do."""

    kind: str
    file: int
    chunk: int = 0


class Arrival:
    """One file. What changes it is called by one thread a chunk, and locks where threads meet."""

    def __init__(self, root: str, number: int, wanted: state.Wanted, compare: bool, dry: bool, reread: bool, memory: state.Memory) -> None:
        """
        :param number: the file's number. :param compare: there is an old file, which may be equal.
        :param dry: only compare. :param reread: read back what was written before it gets its name.
        """
        self.root, self.number, self.wanted = root, number, wanted
        self.path = os.path.join(root, wanted.name)
        self.count = chunks(wanted.size, wanted.chunk)
        self.changed = threading.Condition()
        self.proven: state.Digests = {}
        self.final = False
        self.moved = False
        """Whether it was not equal."""
        self.touched = False
        """Whether it was equal, and only its time was not."""
        self.different = 0
        """Bytes that are not there."""
        self._compare, self._dry, self._reread, self._memory = compare, dry, reread, memory
        self._same: state.Digests = {}
        self._pending = 0
        self._old: t.Optional[Plain] = None
        self._file: t.Optional[Plain] = None
        self._journal = state.Journal(root, wanted)
        self._kept: state.Digests = {}
        self.trusted = False
        """Whether what an earlier run has left is on the disk for certain."""

    def length(self, chunk: int) -> int:
        """A chunk's bytes."""
        return length(self.wanted.size, chunk, self.wanted.chunk)

    @property
    def there(self) -> int:
        """Bytes of it that are known to be right."""
        with self.changed:
            known = self._same if self._file is None and not self.final else self.proven
            return self.wanted.size if self.final else sum(self.length(chunk) for chunk in known)

    def begin(self) -> t.List[Step]:
        """The first steps. :raises OSError:"""
        if self._compare:
            with contextlib.suppress(FileNotFoundError):
                self._old = Plain(self.path)
        if self._old is None:
            return self._open()
        size = self._old.status().st_size
        comparable = [chunk for chunk in range(self.count) if chunk * self.wanted.chunk + self.length(chunk) <= size]
        with self.changed:
            self._pending = len(comparable)
        return [Step(COMPARE, self.number, chunk) for chunk in comparable] or self._compared()

    def read_old(self, buffer: Buffer, chunk: int) -> bytes:
        """Read a chunk of the old file; :returns: its digest, which is a stranger's where the file became shorter meanwhile."""
        if self._old is None:
            raise AssertionError("There is no old file to read.")
        try:
            self._old.read(buffer, chunk * self.wanted.chunk, self.length(chunk))
        except OSError:
            return b""
        return buffer.digest(self.length(chunk), self.wanted.sum)

    def compared(self, chunk: int, own: bytes, theirs: bytes) -> t.List[Step]:
        """A chunk of the old file was compared; :returns: the steps that follow from the last one. :raises OSError:"""
        with self.changed:
            if own == theirs:
                self._same[chunk] = theirs
            self._pending -= 1
            if self._pending:
                return []
        return self._compared()

    def _compared(self) -> t.List[Step]:
        if self._old is None:
            raise AssertionError("There is no old file to read.")
        if len(self._same) == self.count and self._old.status().st_size == self.wanted.size:
            self._settle(self._same)
            return []
        self.different = self.wanted.size - sum(self.length(chunk) for chunk in self._same)
        self.moved = True
        if self._dry:
            with self.changed:
                self.final = True
            return []
        return self._open()

    def _settle(self, digests: state.Digests) -> None:
        """The file is right under its name: let its time say so, by which the next run knows it without reading."""
        if not self._dry:
            if os.stat(self.path).st_mtime_ns != self.wanted.mtime_ns:
                os.utime(self.path, ns=(self.wanted.mtime_ns, self.wanted.mtime_ns))
                self.touched = True
            self._memory.learn(self.wanted.name, os.stat(self.path), digests)
        with self.changed:
            self.proven = dict(digests)
            self.final = True
            self.changed.notify_all()

    def _open(self) -> t.List[Step]:
        """Begin the new file, or go on with the one that an earlier run left; :returns: a step for each chunk."""
        self.moved = True
        if self._dry:
            self.different = self.wanted.size
            with self.changed:
                self.final = True
            return []
        path = state.partial(self.root, self.wanted.name)
        own(os.path.dirname(path))
        there, self.trusted = self._journal.read()
        # Its whole room is taken before the journal is begun: one that is smaller was cut by somebody, and a link was laid by somebody.
        if os.path.islink(path):
            os.unlink(path)
        if not os.path.exists(path) or os.path.getsize(path) < self.wanted.size:
            there = {}
        there = {chunk: digest for chunk, digest in there.items() if 0 <= chunk < self.count}
        self._kept = there
        plain = Plain(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        plain.reserve(self.wanted.size)
        self._journal.begin(there)
        with self.changed:
            self._file = plain
        steps = []
        for chunk in range(self.count):
            kind = RECHECK if chunk in there else LOCAL if chunk in self._same else FETCH
            steps.append(Step(kind, self.number, chunk))
        return steps or self.complete()

    def read_back(self, buffer: Buffer, chunk: int) -> bool:
        """Read a chunk of the new file from the disk; whether it is what the source has, as far as that was told."""
        if self._file is None:
            raise AssertionError("The new file is not open.")
        told = self.proven.get(chunk) or self._kept.get(chunk)
        try:
            self._file.read(buffer, chunk * self.wanted.chunk, self.length(chunk))
        except OSError:
            return False
        return buffer.digest(self.length(chunk), self.wanted.sum) == told

    def equal(self, chunk: int) -> bytes:
        """The digest of a chunk that the old file has too."""
        return self._same[chunk]

    def kept(self, chunk: int) -> bytes:
        """The digest of a chunk that an earlier run has left."""
        return self._kept[chunk]

    def write(self, buffer: Buffer, chunk: int, digest: bytes) -> None:
        """Write a chunk that has this digest. :raises OSError:"""
        if self._file is None:
            raise AssertionError("The new file is not open.")
        self._file.write(buffer, chunk * self.wanted.chunk, self.length(chunk))
        self._journal.add(chunk, digest)

    def arrived(self, chunk: int, digest: bytes) -> t.List[Step]:
        """A chunk is there; :returns: the steps that follow from the last one. :raises OSError:"""
        with self.changed:
            self.proven[chunk] = digest
            self.changed.notify_all()
            # One that was found wrong when the file was read back comes again while others are still read.
            if len(self.proven) < self.count or self._pending:
                return []
        return self.complete()

    def complete(self) -> t.List[Step]:
        """All chunks are there: give the file its name, or first read it back. :raises OSError:"""
        if self._reread:
            self._reread = False
            with self.changed:
                self._pending = self.count
            if self.count:
                return [Step(PROVE, self.number, chunk) for chunk in range(self.count)]
        self._finish()
        return []

    def proved(self, chunk: int, right: bool) -> t.List[Step]:
        """A chunk was read back; one that is wrong comes once more. :raises OSError:"""
        with self.changed:
            self._pending -= 1
            if not right:
                del self.proven[chunk]
            last = not self._pending and len(self.proven) == self.count
        if last:
            self._finish()
        return [] if right else [Step(FETCH, self.number, chunk)]

    def _finish(self) -> None:
        if self._file is None:
            raise AssertionError("The new file is not open.")
        self._file.finish(self.wanted.size)
        unfinished = state.partial(self.root, self.wanted.name)
        folder = os.path.dirname(self.path)
        own(folder)
        user, group = owner(folder)
        if user >= 0:
            os.fchown(self._file.number, user, group)
        os.fchmod(self._file.number, 0o644)
        os.utime(self._file.number, ns=(self.wanted.mtime_ns, self.wanted.mtime_ns))
        os.replace(unfinished, self.path)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
        self._journal.remove()
        self._memory.learn(self.wanted.name, os.stat(self.path), self.proven)
        self._memory.save()
        with self.changed:
            self.final = True
            self.changed.notify_all()

    def reader(self) -> t.Optional[Plain]:
        """Where its chunks can be read from that are proven."""
        return self._file if self._file is not None else self._old

    def close(self) -> None:
        """Let go of it, and keep what is there for the next run."""
        self._journal.close()
        for plain in (self._old, self._file):
            if plain is not None:
                plain.close()


def owner(folder: str) -> t.Tuple[int, int]:
    """Whose a new entry of a folder is to be: root gives it to the folder's own user; for others it is decided (-1)."""
    status = os.stat(existing(folder))
    return (status.st_uid, status.st_gid) if os.geteuid() == 0 else (-1, -1)


def own(folder: str) -> None:
    """Make a folder and those above it that are missing, each the user's whose the one above it is."""
    missing = []
    above = folder
    while not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    for path in reversed(missing):
        user, group = owner(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
            # Whoever owns the folder above may have put a link in its place meanwhile: nothing behind one is given away.
            number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(number, 0o755)
                if user >= 0:
                    os.fchown(number, user, group)
            finally:
                os.close(number)
