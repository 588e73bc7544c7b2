# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The controller's half of a module that has a program of the collection's own run by systemd: it makes the program and sends it along."""

from __future__ import annotations

import base64
import typing as t
import zlib

from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.plugin_utils._zipapp import build

Data = dict[str, t.Any]


def pack(util: str) -> str:
    """The program of a util as the module takes it. :raises ValueError: see :func:`_zipapp.build`."""
    return base64.b64encode(zlib.compress(build(util), 9)).decode()


class UnitAction(ActionBase):
    """One node's part."""

    _supports_check_mode = True
    _supports_async = False

    MODULE: t.ClassVar[str]
    """The module's full name."""
    UTIL: t.ClassVar[str]
    """The util that is the program."""
    SPECIFICATION: t.ClassVar[t.Mapping[str, Data]]
    """The options, with C(program), which is not for a user, and C(state)."""
    WANTED: t.ClassVar[str]
    """The state in which the node needs the program."""
    KEPT: t.ClassVar[t.Collection[str]] = ()
    """Options that stay on the controller."""

    def run(self, tmp: str | None = None, task_vars: Data | None = None) -> Data:
        super().run(tmp, task_vars)
        _validated, given = self.validate_argument_spec(argument_spec=self.SPECIFICATION)
        # Not what only is an option's other name.
        arguments = {key: given[key] for key in self.SPECIFICATION if given[key] is not None and key not in self.KEPT}
        if given["state"] == self.WANTED:
            known = self.known(given, arguments)
            if known is not None:
                return known
            arguments["program"] = pack(self.UTIL)
        found: Data = self._execute_module(module_name=self.MODULE, module_args=arguments, task_vars=task_vars)
        # Its kilobytes say nothing to a reader.
        found.get("invocation", {}).get("module_args", {}).pop("program", None)
        return found

    def known(self, given: t.Mapping[str, t.Any], arguments: Data) -> Data | None:
        """The result where the controller knows it without asking the node, else None.

        :param given: all options. :param arguments: those that the node is to get; they may be changed.
        """
        return None
