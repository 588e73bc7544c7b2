# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is compared of a file: a digest of each of its chunks.

C(gmac) is the authentication code of AES-128 in Galois mode under a key that everybody knows: 128 bits that any accident changes, at several
gigabytes a second on processors with AES instructions (every Spark's, every x86 of the last ten years). It is no protection from somebody who
forges files on purpose; C(sha256) is, at a fraction of the speed. Python has no name for the first, but its C(ssl) has loaded the library that does.
Sources: NIST SP 800-38D, 6.4; EVP_EncryptInit(3), "AEAD modes".
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

# Only so that libcrypto is in this process. A Python can have been built without it.
with contextlib.suppress(ImportError):
    importlib.import_module("ssl")

PIECE = 1 << 20
"""Bytes that are hashed and sent at a time: they stay in the processor's cache between the two."""
_KEY, _NONCE = b"sparkstack-model", bytes(12)
_GET_TAG, _TAG = 0x10, 16
_KNOWN = b"sparkstack", "77e539e81368852fd8dd00388f9b9fe8"
"""What is hashed once to see that the library does what it should, and what must come of it."""


class Sum(t.Protocol):
    """A digest in the making."""

    def update(self, address: int, view: memoryview) -> None:
        """Add bytes. :param address: where they lie in memory. :param view: the same bytes."""

    def digest(self) -> bytes:
        """The digest; to be called once."""


class Sha256:
    """SHA-256."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, address: int, view: memoryview) -> None:
        """See :class:`Sum`."""
        self._hash.update(view)

    def digest(self) -> bytes:
        """See :class:`Sum`."""
        return self._hash.digest()


class Gmac:
    """GMAC by OpenSSL's libcrypto. :raises OSError: when this process has none, or it refuses."""

    def __init__(self) -> None:
        self._library = library()
        if self._library is None:
            raise OSError("this node's Python has no libcrypto")
        self._context: t.Optional[int] = self._library.EVP_CIPHER_CTX_new()
        if not self._context or self._library.EVP_EncryptInit_ex(self._context, self._library.EVP_aes_128_gcm(), None, _KEY, _NONCE) != 1:
            raise OSError("libcrypto does not know AES-128-GCM")

    def update(self, address: int, view: memoryview) -> None:
        """See :class:`Sum`."""
        count = ctypes.c_int()
        if self._library.EVP_EncryptUpdate(self._context, None, ctypes.byref(count), address, view.nbytes) != 1:  # type: ignore[union-attr]
            raise OSError("libcrypto could not hash")

    def digest(self) -> bytes:
        """See :class:`Sum`."""
        count, tag = ctypes.c_int(), ctypes.create_string_buffer(_TAG)
        done = self._library.EVP_EncryptFinal_ex(self._context, tag, ctypes.byref(count))  # type: ignore[union-attr]
        if done != 1 or self._library.EVP_CIPHER_CTX_ctrl(self._context, _GET_TAG, _TAG, tag) != 1:  # type: ignore[union-attr]
            raise OSError("libcrypto could not hash")
        return tag.raw

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._library.EVP_CIPHER_CTX_free(self._context)  # type: ignore[union-attr]
            self._context = None


SUMS: t.Dict[str, t.Callable[[], Sum]] = {"gmac": Gmac, "sha256": Sha256}


@functools.lru_cache(maxsize=1)
def library() -> t.Optional[ctypes.CDLL]:
    """The libcrypto that this process has loaded, or None."""
    for line in text("/proc/self/maps").splitlines():
        # "7f1c2a400000-7f1c2a4c4000 r--p 00000000 fe:00 1053 /usr/lib/aarch64-linux-gnu/libcrypto.so.3"
        path = line.split(None, 5)[5] if line.count(" ") >= 5 and "libcrypto" in line else ""
        if path:
            return _declared(ctypes.CDLL(path))
    return None


def _declared(found: ctypes.CDLL) -> t.Optional[ctypes.CDLL]:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    counted = ctypes.POINTER(ctypes.c_int)
    signatures: t.Dict[str, t.Tuple[t.Any, t.List[t.Any]]] = {
        "EVP_CIPHER_CTX_new": (pointer, []),
        "EVP_aes_128_gcm": (pointer, []),
        "EVP_EncryptInit_ex": (number, [pointer, pointer, pointer, ctypes.c_char_p, ctypes.c_char_p]),
        "EVP_EncryptUpdate": (number, [pointer, pointer, counted, pointer, number]),
        "EVP_EncryptFinal_ex": (number, [pointer, pointer, counted]),
        "EVP_CIPHER_CTX_ctrl": (number, [pointer, number, number, pointer]),
        "EVP_CIPHER_CTX_free": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(found, name, None)
        if function is None:
            return None
        function.restype, function.argtypes = result, arguments
    return found


@functools.lru_cache(maxsize=1)
def available() -> t.Tuple[str, ...]:
    """The digests that this node can make, the quickest first."""
    try:
        right = of(_KNOWN[0], "gmac").hex() == _KNOWN[1]
    except OSError:
        right = False
    return ("gmac", "sha256") if right else ("sha256",)


def of(data: bytes, name: str) -> bytes:
    """The digest of bytes. :param name: one of :data:`SUMS`."""
    made = SUMS[name]()
    room = ctypes.create_string_buffer(data, len(data))
    made.update(ctypes.addressof(room), memoryview(data))
    return made.digest()
