# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Chunks of files to and from the disk, past the page cache: on memory that GPU and processor share, a full one makes the next launch fail.

Direct I/O where the file system takes it; else through the page cache, of which each chunk's pages are given back at once.
Sources: open(2), O_DIRECT; posix_fadvise(2); sync_file_range(2); fallocate(2).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._staging_sum import PIECE, SUMS

CHUNK = 8 << 20
"""Bytes of a chunk, what is asked for, proved and journalled at a time. A multiple of every block size."""
STEP = 4 << 20
"""Bytes of one read or write."""
PART = 2 << 20
"""Bytes that who gives a chunk reads at a time: those of all connections together stay in the processor's cache until they are hashed and sent."""
_BLOCK = 4096
"""What direct I/O wants offsets, lengths and memory to be multiples of, on every disk known today."""
# Wait for what is being written, write, and wait for that (linux/fs.h).
_SYNC_RANGE = 1 | 2 | 4


class Buffer:
    """Room for one chunk, in memory that begins at a page."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, -(-size // _BLOCK) * _BLOCK)
        self.view = memoryview(self._map)
        # The address stays the same as long as the map lives.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def digest(self, length: int, name: str) -> bytes:
        """The digest of its first bytes. :param name: one of M(_staging_sum)'s."""
        made = SUMS[name]()
        for start in range(0, length, PIECE):
            made.update(self.address + start, self.view[start : min(start + PIECE, length)])
        return made.digest()


class Room(threading.local):
    """A buffer for each thread that reads, gone with the thread. So a caller that stands still holds nobody's but its own."""

    def __init__(self) -> None:
        self.buffer = Buffer(PART)


class Pool:
    """A number of buffers, made when they are first needed."""

    def __init__(self, count: int, size: int) -> None:
        self._left, self._size = count, size
        self._free: t.List[Buffer] = []
        self._changed = threading.Condition()

    def take(self) -> Buffer:
        """A buffer, as soon as one is free."""
        with self._changed:
            while not self._free and not self._left:
                self._changed.wait()
            if self._free:
                return self._free.pop()
            self._left -= 1
        return Buffer(self._size)

    def give(self, buffer: Buffer) -> None:
        """Take a buffer back."""
        with self._changed:
            self._free.append(buffer)
            self._changed.notify()


class Plain:
    """An open file, read and written by whole chunks from any thread."""

    def __init__(self, path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> None:
        """:raises OSError: when it can't be opened."""
        self.path = path
        self.direct = True
        try:
            self.number = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, mode)
        except OSError as error:
            # A file system without it, such as tmpfs before Linux 6.6.
            if error.errno != errno.EINVAL:
                raise
            self.direct = False
            self.number = os.open(path, flags | os.O_CLOEXEC, mode)

    def status(self) -> os.stat_result:
        """What the file is now."""
        return os.fstat(self.number)

    def read(self, buffer: Buffer, offset: int, length: int) -> None:
        """Read a chunk. :param offset: a multiple of a block. :raises OSError: also where the file is shorter."""
        done = 0
        while done < length:
            done += self._read(buffer, offset + done, done, min(STEP, length - done))

    def _read(self, buffer: Buffer, offset: int, start: int, length: int) -> int:
        room = -(-length // _BLOCK) * _BLOCK if self.direct else length
        try:
            count = os.preadv(self.number, [buffer.view[start : start + room]], offset)
        except OSError as error:
            if not self._undirected(error):
                raise
            return self._read(buffer, offset, start, length)
        if count < length:
            # Direct reads end at a block, or at the file's end, which is nearer than it was.
            if count and count % _BLOCK == 0:
                return count
            raise OSError(errno.EIO, f"{self.path} has become shorter")
        if not self.direct:
            os.posix_fadvise(self.number, offset, length, os.POSIX_FADV_DONTNEED)
        return length

    def write(self, buffer: Buffer, offset: int, length: int) -> None:
        """Write a chunk; of the file's last one up to a block more than that, which :meth:`finish` takes away. :raises OSError:"""
        done = 0
        while done < length:
            done += self._write(buffer, offset + done, done, min(STEP, length - done))
        if not self.direct:
            _write_back(self.number, offset, length)

    def _write(self, buffer: Buffer, offset: int, start: int, length: int) -> int:
        room = -(-length // _BLOCK) * _BLOCK if self.direct else length
        try:
            count = os.pwritev(self.number, [buffer.view[start : start + room]], offset)
        except OSError as error:
            if not self._undirected(error):
                raise
            return self._write(buffer, offset, start, length)
        if not count or (count < length and self.direct and count % _BLOCK):
            raise OSError(errno.EIO, f"{self.path} took only a part of what was written")
        return min(count, length)

    def _undirected(self, error: OSError) -> bool:
        """Go on through the page cache where direct I/O was promised and is refused; whether that is the case."""
        if not self.direct or error.errno != errno.EINVAL:
            return False
        fcntl.fcntl(self.number, fcntl.F_SETFL, fcntl.fcntl(self.number, fcntl.F_GETFL) & ~os.O_DIRECT)
        self.direct = False
        return True

    def reserve(self, size: int) -> None:
        """Have the file's whole room taken now, where the file system can, so that it does not end in the middle. :raises OSError: no space."""
        if size and not _fallocate(self.number, size):
            os.ftruncate(self.number, max(size, self.status().st_size))

    def finish(self, size: int) -> None:
        """Give the file its size, and have all of it on the disk."""
        os.ftruncate(self.number, size)
        os.fsync(self.number)

    def close(self) -> None:
        """Close it."""
        os.close(self.number)


def _libc(name: str) -> t.Any:
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def _fallocate(number: int, size: int) -> bool:
    """Python's own posix_fallocate(3) would write all of a file whose file system can't."""
    function = _libc("fallocate")
    if function is None:
        return False
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if function(number, 0, 0, size) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR):
        return False
    raise OSError(code, os.strerror(code))


def _write_back(number: int, offset: int, length: int) -> None:
    """Have a range on the disk, then out of the page cache: only clean pages can be given back."""
    function = _libc("sync_file_range")
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    if function is None or function(number, offset, length, _SYNC_RANGE):
        os.fdatasync(number)
    os.posix_fadvise(number, offset, length, os.POSIX_FADV_DONTNEED)


def chunks(size: int, chunk: int) -> int:
    """How many chunks a file of that size has; an empty one has none."""
    return -(-size // chunk)


def length(size: int, index: int, chunk: int) -> int:
    """The bytes of a file's chunk. :param index: its number. :param chunk: the size of all but the last."""
    return min(chunk, size - index * chunk)
