#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: model_download
short_description: Have a model from a hub in a folder of a node, whole and of a known commit
version_added: 1.0.0
description:
  - Loads a model with the library huggingface_hub into a plain folder, and only what is missing of it.
  - The folder gets its name O(path) in one step, once every file has the content that the hub's hashes tell and the headers of the weights
    fit their sizes. Until then all lies in a hidden folder beside it, from which an interrupted download goes on.
  - A branch or tag is resolved to a commit, which is kept in the folder and told. A later run with the same O(revision) stays with that
    commit, without asking the hub, until O(update) is set.
  - The download runs on in the background of the node when the controller goes away; a second run sees it, shows how far it is, and waits
    for its end.
  - What is written is kept out of the page cache, which would take the memory of the next launch.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - The hub is asked for what it has, so that RV(bytes_loaded) is what would come. Files of the right size count as good without being read.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    description: Target OS/families that can be operated against.
    support: full
    platforms: linux
options:
  repo:
    description: The repository on the hub, as C(ORGANISATION/NAME).
    type: str
    required: true
  revision:
    description: A branch, a tag or, so that it is the same for ever, a commit of 40 hexadecimal digits.
    type: str
    default: main
  path:
    description:
      - The model's folder, an absolute path. Its parent is made where it is missing.
      - A folder that is there already is taken over. Files in it that have the right content stay, and those that the hub doesn't have stay too.
    type: path
    required: true
  token:
    description:
      - The token for a repository that isn't public. It reaches the program that loads in its environment only.
      - It is refused together with an O(endpoint) that is not encrypted.
    type: str
  endpoint:
    description: The address of a mirror. When it is not given, the hub that the library knows, or what E(HF_ENDPOINT) says.
    type: str
    default: ""
  include:
    description: Patterns of the files to load, such as V(*.safetensors). When there is none, all.
    type: list
    elements: str
    default: []
  exclude:
    description: Patterns of files that are not loaded, such as V(original/*), where some models have their weights once more.
    type: list
    elements: str
    default: []
  update:
    description: Ask the hub whether O(revision) has a newer commit, and load that.
    type: bool
    default: false
  checksum:
    description:
      - Read all files that are there and compare them with the hub's hashes.
      - Else a file is taken for unchanged while it has the size and time that it had when it was checked.
    type: bool
    default: false
  offline:
    description: Ask no hub. The model must be there, whole.
    type: bool
    default: false
  xet:
    description:
      - Let the library load by Xet what is stored so, in which only whole files are gone on with after an interruption.
      - Without it, and for all else, a file is gone on with to within 10 MiB.
    type: bool
    default: true
  workers:
    description: How many files are loaded at a time.
    type: int
    default: 8
  python:
    description:
      - A Python on the node which has huggingface_hub, version 0.34 or later, most often that of a virtual environment.
      - When it is not given, the one that runs this module.
    type: path
  stall_timeout:
    description: Seconds without a byte after which it gives up.
    type: int
    default: 120
  timeout:
    description: Seconds after which it gives up in any case.
    type: int
    default: 43200
seealso:
  - module: sparkstack.inference.model_manifest_info
notes:
  - Proxies are set by C(environment) of the task, as E(HTTPS_PROXY).
"""

EXAMPLES = r"""
---
- name: Have the model on the head
  sparkstack.inference.model_download:
    repo: Qwen/Qwen3.5-122B-A10B-FP8
    revision: 0123456789abcdef0123456789abcdef01234567
    path: /models/Qwen3.5-122B-A10B-FP8
    python: /opt/sparkstack/hub/bin/python
    token: "{{ vault_hub_token }}"
  become: true
  register: model

- name: Tell the commit
  ansible.builtin.debug:
    msg: "{{ model.repo }} at {{ model.commit }}, {{ model.bytes_loaded }} of {{ model.bytes_total }} bytes loaded"
"""

RETURN = r"""
repo:
  description: The repository.
  returned: success
  type: str
revision:
  description: The revision that was asked for.
  returned: success
  type: str
commit:
  description: The commit that the folder has, or would have. With O(offline), V(null) for a model that doesn't say of which commit it is.
  returned: success
  type: str
path:
  description: The model's folder.
  returned: success
  type: str
bytes_total:
  description: The size of the model's files in bytes.
  returned: success
  type: int
bytes_loaded:
  description: The size of the files that were loaded, or would be in check mode.
  returned: success
  type: int
bytes_resumed:
  description: How much of RV(bytes_loaded) an earlier run had brought.
  returned: success
  type: int
files_loaded:
  description: The files that were loaded, or would be in check mode.
  returned: success
  type: list
  elements: str
extra:
  description: Files in the folder that the hub doesn't have. They are left alone.
  returned: success
  type: list
  elements: str
running:
  description: Whether another run loads to the same folder now.
  returned: success, in check mode
  type: bool
seconds:
  description: How long it took.
  returned: success
  type: float
throughput_mb_s:
  description: What came in this run in megabytes (1000000 bytes) a second.
  returned: success
  type: float
"""

import os
import sys

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._hub_download import problem
from ansible_collections.sparkstack.inference.plugins.module_utils._hub_node import ARGUMENTS, Download, Failed


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    params["python"] = params["python"] or sys.executable
    # As huggingface_hub does; here it is checked as well.
    params["endpoint"] = (params["endpoint"] or os.environ.get("HF_ENDPOINT", "")).rstrip("/")
    wrong = problem(params["path"], params["repo"], params["endpoint"], bool(params["token"]))
    if wrong is None and min(params["workers"], params["stall_timeout"], params["timeout"]) < 1:
        wrong = "workers, stall_timeout and timeout are numbers from 1 on."
    if wrong is not None:
        module.fail_json(msg=wrong)
    try:
        result = Download(module).run()
    except Failed as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"The model's folder {params['path']} can't be made ready: {error}. Look at its disk and rights, or let this task run with `become`."
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
