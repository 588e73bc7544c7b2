# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A certificate for one task: it is made, told to the other nodes by its fingerprint, and never used again."""

from __future__ import annotations

import datetime
import hashlib
import typing as t

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError:
    # ansible-core itself requires it, and works on all the same where only its vault is out of use by that.
    x509 = None  # type: ignore[assignment]

_VALID = datetime.timedelta(days=7)
"""Nobody looks at its time, as it is compared by itself: the nodes' clocks need not be right."""


class Certificate(t.NamedTuple):
    """C(certificate) and C(key) in PEM, and C(pin), the SHA-256 of the certificate in hexadecimal."""

    certificate: str
    key: str
    pin: str


def make(host: str) -> Certificate:
    """A certificate that a node signs itself; :raises ValueError: where this Python can make none."""
    if x509 is None:
        raise ValueError("The controller's Python has no library cryptography, by which certificates are made: install it, or set tls to false.")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = made.public_bytes(serialization.Encoding.PEM)
    return Certificate(public.decode(), private.decode(), hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest())
