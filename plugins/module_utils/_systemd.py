# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a program of the collection's own tells systemd, which has started it."""

from __future__ import annotations

import os
import socket


def notify(text: str) -> None:
    """See sd_notify(3). Nobody listens where systemd has not started this."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)
