# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: variable_problems
short_description: What is wrong with the variables that a user gives
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Compares the variables of hosts with what the collection's roles document of them, before a role begins and before a node is reached. A switch that is
    neither on nor off, a number that is none, a word that is none of the choices, or a network that is none, is told in a sentence that says what to write.
  - So is a variable of the command line by which a playbook would bring something else than it then starts.
  - The collection's playbooks ask it first of all. No value of a kind in which a secret could be is shown.
options:
  _terms:
    description: The hosts, by their names in the inventory.
    required: true
notes:
  - A value that can't be templated yet, as it stands on facts that are gathered later, is left to the role's own check.
seealso:
  - name: A role's variables
    description: They are described by C(ansible-doc -t role).
    link: https://docs.ansible.com/ansible/latest/cli/ansible-doc.html
"""

EXAMPLES = r"""
---
- name: Refuse values that can't be meant
  ansible.builtin.assert:
    that: problems | length == 0
    fail_msg: "{{ problems | first }}"
  vars:
    problems: "{{ query('sparkstack.inference.variable_problems', *groups['sparks']) }}"
"""

RETURN = r"""
_raw:
  description: A sentence on each variable, with the hosts' names where it is not the same on all of them. Empty where all are well.
  type: list
  elements: str
  sample:
    - "must_serve is 'maybe', and can only be true or false: write must_serve=true or must_serve=false."
"""

import os
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _variables

ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "roles")


class LookupModule(LookupBase):
    """Of all hosts at once: what is in the inventory's group, or on the command line, is told once."""

    def run(self, terms: list[str], variables: t.Any = None, **kwargs: t.Any) -> list[str]:
        """The sentences, see the documentation above."""
        known = _variables.options(ROLES)
        told: dict[str, list[str]] = {problem: list(terms) for problem in _variables.overruling(load_extra_vars(self._loader))}
        for host in terms:
            given = variables["hostvars"][host]
            for name, option in known.items():
                if name not in given:
                    continue
                try:
                    value = given[name]
                except AnsibleError:
                    continue
                problem = _variables.problem(name, value, option)
                if problem:
                    told.setdefault(problem, []).append(host)
        return [problem if hosts == list(terms) else f"On {listed(hosts)}: {problem}" for problem, hosts in told.items()]
