# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges the collective that all ranks took part in. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import Checked, Item, Node, Wanted


def collective(nodes: t.Sequence[Node], wanted: Wanted, blocked: t.Sequence[Item]) -> Checked:
    """All ranks met and exchanged something, by the transport that is expected. :param blocked: what explains already why they could not."""
    return Checked()
