# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: scrape_targets
short_description: The heads that have metrics, as targets of Prometheus
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Turns what the heads of deployments have answered to C(/metrics) into targets as C(file_sd_configs) of Prometheus reads them, and says which have none.
options:
  _input:
    description:
      - One mapping a node, with C(node), C(host) (by which Prometheus reaches it) and C(answers) (the results of M(ansible.builtin.uri) in a loop over the
        running heads of M(sparkstack.inference.inference_info)).
    type: list
    elements: dict
    required: true
seealso:
  - module: sparkstack.inference.inference_info
"""

EXAMPLES = r"""
---
- name: Write the targets
  ansible.builtin.copy:
    content: "{{ (seen | sparkstack.inference.scrape_targets).targets | to_nice_json }}"
    dest: /etc/prometheus/sparks.json
    mode: "0644"
"""

RETURN = r"""
_value:
  description: C(targets) is the list for the file, and C(silent) has a sentence for each head that has no metrics.
  type: dict
  sample:
    silent: []
    targets:
      - targets: ["10.1.230.11:8000"]
        labels:
          sparks_deployment: qwen
          sparks_engine: vllm
          sparks_model: qwen3.5-122b
          sparks_node: spark1
"""

import typing as t

from ansible.errors import AnsibleFilterError

_SGLANG = """SGLang has them with -e '{"tp_launch_arguments": {"enable-metrics": true}}'"""


def scrape_targets(nodes: t.Any) -> dict[str, list[t.Any]]:
    """The targets, see the documentation above."""
    nodes = list(nodes)
    if not all(isinstance(node, t.Mapping) and {"node", "host", "answers"} <= node.keys() for node in nodes):
        raise AnsibleFilterError("scrape_targets: each node needs a mapping with node, host and answers.")
    targets: list[t.Any] = []
    silent: list[t.Any] = []
    for node in nodes:
        for answer in node["answers"]:
            head, status = answer["item"], answer.get("status")
            if status == 200:
                targets.append(_target(node, head))
            else:
                why = f"HTTP status {status}" if status and status > 0 else f"it does not answer: {answer.get('msg') or 'no reason given'}"
                more = f". {_SGLANG}" if head["engine"] == "sglang" and status == 404 else ""
                silent.append(f"{head['deployment']} is no target, for port {head['port']} of {node['node']} has no metrics ({why}){more}.")
    return {"targets": sorted(targets, key=lambda target: (target["labels"]["sparks_deployment"], target["targets"])), "silent": silent}


def _target(node: t.Mapping[str, t.Any], head: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """One head. vLLM's own labels are C(engine) and C(model_name), so ours have a prefix; a launch's ID would begin new series with each."""
    everywhere = head["listen_address"] in ("0.0.0.0", "::")
    host = str(node["host"] if everywhere else head["listen_address"])
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    labels = {"sparks_deployment": head["deployment"], "sparks_engine": head["engine"], "sparks_model": head["model"], "sparks_node": node["node"]}
    return {"targets": [f"{host}:{head['port']}"], "labels": labels}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, list[t.Any]]]]:
        """Their names."""
        return {"scrape_targets": scrape_targets}
