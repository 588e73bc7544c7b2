# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of model_download: the node's half runs in the node's background, and it is shown here how far it is."""

from __future__ import annotations

import time
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._hub_node import ARGUMENTS
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _hub_progress

MODULE = "sparkstack.inference.model_download"
_STATUS = "ansible.legacy.async_status"
_FIRST, _NEXT = 0.5, 5.0
"""Seconds between two looks: where nothing has to be loaded it is over at once."""
_MARGIN = 120
"""Seconds over the module's own time, in which it ends by itself."""
_JOB = ("ansible_job_id", "started", "finished", "results_file", "stdout", "stderr", "stdout_lines", "stderr_lines")
"""What a result has only because it comes out of the background."""


class ActionModule(ActionBase):
    """One host's download."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _validated, checked = self.validate_argument_spec(argument_spec=ARGUMENTS)
        if self._task.async_val:
            # In the background already, as the user wants it.
            return self._module(MODULE, self._task.args, wrap_async=True)
        if self._task.check_mode:
            return self._module(MODULE, self._task.args)
        job = self._start(checked["timeout"] + _MARGIN)
        if "ansible_job_id" not in job:
            return job
        folder = self._remote_expand_user(self.get_shell_option("async_dir", default="~/.ansible_async"))
        asked = {"jid": job["ansible_job_id"], "_async_dir": folder}
        found = self._follow(asked)
        self._module(_STATUS, {**asked, "mode": "cleanup"})
        return {name: value for name, value in found.items() if name not in _JOB}

    def _module(self, name: str, arguments: dict[str, t.Any], wrap_async: bool = False) -> dict[str, t.Any]:
        found: dict[str, t.Any] = self._execute_module(module_name=name, module_args=dict(arguments), task_vars=self._vars, wrap_async=wrap_async)
        return found

    def _start(self, limit: int) -> dict[str, t.Any]:
        self._task.async_val = limit
        try:
            # As they were given: a path's `~` is the node's.
            return self._module(MODULE, self._task.args, wrap_async=True)
        finally:
            self._task.async_val = 0

    def _follow(self, asked: dict[str, t.Any]) -> dict[str, t.Any]:
        """Show how far it is until it ends; the node ends it when its time is over. :param asked: which job."""
        command = _hub_progress.command(str(self._task.args.get("path", "")))
        host, repo = str(self._vars.get("inventory_hostname")), str(self._task.args.get("repo"))
        last: float | None = None
        pause = _FIRST
        while True:
            time.sleep(pause)
            found = self._module(_STATUS, {**asked, "mode": "status"})
            if found.get("finished"):
                return found
            told = _hub_progress.read(self._low_level_execute_command(command).get("stdout") or "")
            # What is there at first may be of a run that was interrupted.
            if told and last is not None and told["at"] != last:
                self._display.display(_hub_progress.line(host, repo, told))
            last = told["at"] if told else 0.0
            pause = min(_NEXT, pause * 2)
