# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Asks nvidia-smi, whatever state the driver is in."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._memory import invalid_field, no_gpu


class Module(t.Protocol):
    """What is needed of an AnsibleModule."""

    def get_bin_path(self, arg: str) -> t.Optional[str]:
        """The path of a program, or None."""

    def run_command(self, args: t.List[str], **options: t.Any) -> t.Tuple[int, str, str]:
        """Exit code, standard output, standard error."""


def query(module: Module, option: str, fields: t.Sequence[str], timeout: int) -> t.Tuple[t.List[str], str, t.Optional[str]]:
    """Ask for fields as CSV, leaving out those that this version of nvidia-smi does not know.

    :param option: V(--query-gpu) or V(--query-compute-apps).
    :param timeout: seconds after which the call is given up, where the node has coreutils' timeout: it hangs when the driver does.
    :returns: the fields that were answered, the answer, and a sentence on what went wrong or None. On a node without
        nvidia-smi, or without a GPU behind it, nothing is wrong and the answer is empty.
    """
    wanted = list(fields)
    while wanted:
        stdout, said = ask(module, [option + "=" + ",".join(wanted), "--format=csv,noheader,nounits"], timeout)
        unknown = invalid_field(stdout)
        if said and unknown in wanted:
            wanted.remove(unknown)
            continue
        if said and not no_gpu(stdout):
            return wanted, "", said
        return wanted, stdout, None
    return wanted, "", None


def ask(module: Module, arguments: t.Sequence[str], timeout: int) -> t.Tuple[str, t.Optional[str]]:
    """Call nvidia-smi.

    :param timeout: see M(query).
    :returns: what it wrote to its standard output, its messages too, and a sentence on what went wrong, or None where it ended with
        exit code 0. On a node without nvidia-smi nothing is wrong and the answer is empty.
    """
    smi = module.get_bin_path("nvidia-smi")
    guard = module.get_bin_path("timeout")
    if not smi:
        return "", None
    command = [smi, *arguments]
    if guard:
        command = [guard, "--kill-after=2", str(timeout), *command]
    try:
        rc, stdout, stderr = module.run_command(command, errors="surrogate_then_replace", handle_exceptions=False)
    except OSError as error:
        rc, stdout, stderr = 126, "", str(error)
    if rc == 0:
        return stdout, None
    # 137: it did not mind the first signal either, as a process that waits for the driver does not.
    if rc in (124, 137) and guard:
        said = f"It did not answer within {timeout} seconds."
    else:
        said = next((line for line in (stdout + "\n" + stderr).splitlines() if line.strip()), "It said nothing.")
    return stdout, f"{smi} {' '.join(word.partition('=')[0] for word in arguments[:1])} failed with exit code {rc}: {said.strip()}"
