# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: router_plan
short_description: The router in front of a deployment's replicas, as a container, or why there can be none
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Finds the heads of a deployment's replicas in what M(sparkstack.inference.inference_info) told of each node, and makes of them the command line of
    C(sglang-router) or C(vllm-router), or a configuration of C(nginx).
  - The role P(sparkstack.inference.router#role) carries it out.
positional: asked
options:
  _input:
    description:
      - One mapping a node, with C(node), C(host) (by which the router reaches it), C(endpoint_host) (by which clients reach it), and C(containers),
        C(listeners), C(listen_possible) and C(foreign) as the module returns them.
    type: list
    elements: dict
    required: true
  asked:
    description:
      - What is asked for, with C(deployment), C(kind), C(node) (where it is to run), C(port), C(metrics_port), C(listen_address), C(upstreams), C(policy),
        C(image), C(timeout) and C(max_body), as the role has them.
    type: dict
    required: true
seealso:
  - module: sparkstack.inference.inference_info
"""

EXAMPLES = r"""
---
- name: Find what the router is to be
  ansible.builtin.set_fact:
    router: "{{ nodes | sparkstack.inference.router_plan(asked) }}"
"""

RETURN = r"""
_value:
  description:
    - C(problems) has a sentence for each thing that is in the way. Without one C(name), C(image), C(entrypoint), C(command), C(config), C(upstreams),
      C(model), C(url), C(endpoint), C(folder), C(told) and C(digest) say what it is to be.
  type: dict
  sample:
    problems: []
    name: qwen-router
    upstreams: ["192.168.200.11:8000", "192.168.200.13:8000"]
    endpoint: http://spark1:8080/v1
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _router


def router_plan(nodes: t.Any, asked: t.Any) -> dict[str, t.Any]:
    """The mapping, see the documentation above."""
    nodes = list(nodes)
    if not all(isinstance(node, t.Mapping) and {"node", "host"} <= node.keys() for node in nodes):
        raise AnsibleFilterError("router_plan: each node needs a mapping with node and host.")
    try:
        return _router.plan({**asked, "port": int(asked["port"]), "metrics_port": int(asked["metrics_port"])}, nodes)
    except (KeyError, TypeError, ValueError) as error:
        raise AnsibleFilterError(f"router_plan: what is asked for is not whole: {error!r}.") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"router_plan": router_plan}
