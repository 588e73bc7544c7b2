#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_proof
short_description: Prove with one real completion that a model is served
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Sends one completion through the OpenAI API and waits for its text, within a time limit.
  - Nothing less proves that all ranks are alive. After a worker's death the head's C(/health) goes on answering 200, until the
    next request.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  check_mode:
    details:
      - The completion is asked for in check mode as well.
options:
  url:
    description:
      - The API's address up to C(/v1).
    type: str
    required: true
  model:
    description:
      - The name under which the model is served.
    type: str
    required: true
  prompt:
    description:
      - The beginning that the model is to go on from.
    type: str
    default: The capital of France is
  max_tokens:
    description:
      - The number of tokens to ask for.
    type: int
    default: 16
  timeout:
    description:
      - Seconds after which the answer is given up.
    type: int
    default: 120
  api_key:
    description:
      - The API's key, if it asks for one.
    type: str
  required:
    description:
      - Fail when there is no answer. With V(false) the module only reports.
    type: bool
    default: true
seealso:
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Ask the head for a completion
  sparkstack.inference.inference_proof:
    url: http://127.0.0.1:8000/v1
    model: qwen3.5-122b
"""

RETURN = r"""
answered:
  description: Whether a completion came.
  returned: always
  type: bool
text:
  description: The completion's text.
  returned: when answered
  type: str
tokens:
  description: The number of tokens of the completion, as the engine counts them.
  returned: when answered
  type: int
seconds:
  description: The time from the request to the whole answer, in seconds.
  returned: always
  type: float
status:
  description: The HTTP status; V(-1) when there was none.
  returned: always
  type: int
problem:
  description: Why there was no completion, in one sentence, or V(none).
  returned: always
  type: str
"""

import http.client
import json
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.text.converters import to_text
from ansible.module_utils.urls import fetch_url


def ask(module: AnsibleModule) -> t.Dict[str, t.Any]:
    """One completion; never raises for what the network or the engine does."""
    params = module.params
    url = params["url"].rstrip("/") + "/completions"
    headers = {"Content-Type": "application/json"}
    if params["api_key"]:
        headers["Authorization"] = "Bearer " + params["api_key"]
    body = {
        "model": params["model"],
        "prompt": params["prompt"],
        "max_tokens": params["max_tokens"],
        "temperature": 0,
    }
    begin = time.monotonic()
    response, info = fetch_url(module, url, data=json.dumps(body), headers=headers, method="POST", timeout=params["timeout"], use_proxy=False)
    raw = b""
    try:
        raw = response.read() if response else info.get("body") or b""
    except (OSError, http.client.HTTPException) as error:
        # IncompleteRead(0 bytes read, 120 more expected): the head was killed in the middle of its answer.
        info.update(status=-1, msg=str(error) or type(error).__name__)
    seconds = round(time.monotonic() - begin, 3)
    text = to_text(raw, errors="replace")
    found: t.Dict[str, t.Any] = {"answered": False, "seconds": seconds, "status": info.get("status", -1), "problem": None}
    if found["status"] == 200:
        try:
            answer = json.loads(text)
            found["text"] = answer["choices"][0]["text"]
            found["tokens"] = (answer.get("usage") or {}).get("completion_tokens") or 0
            found["answered"] = found["tokens"] > 0 or bool(found["text"])
        except (AttributeError, ValueError, KeyError, IndexError, TypeError):
            pass
        if not found["answered"]:
            found["problem"] = f"{url} answered 200, but with no completion: {text[:300]}"
    else:
        said = text.strip()[:300] or to_text(info.get("msg", ""))
        found["problem"] = "{} gave no completion within {} s: {} (HTTP status {}, after {} s).".format(
            url, params["timeout"], said.rstrip("."), found["status"], seconds
        )
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "prompt": {"type": "str", "default": "The capital of France is"},
            "max_tokens": {"type": "int", "default": 16, "no_log": False},
            "timeout": {"type": "int", "default": 120},
            "api_key": {"type": "str", "no_log": True},
            "required": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    found = ask(module)
    if module.params["required"] and not found["answered"]:
        module.fail_json(msg=found["problem"], changed=False, **found)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
