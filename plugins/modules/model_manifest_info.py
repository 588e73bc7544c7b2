#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: model_manifest_info
short_description: Tells whether a model is whole on a node, and what it is
version_added: 1.0.0
description:
  - Looks at a model's folder without reading the weights, so that it takes milliseconds for any size.
  - A file of weights is whole when it has the size that its own safetensors header asks for, and the model is whole when
    all files are there which its index names.
  - The RV(digest) of two nodes is equal when their files have the same names, sizes, safetensors headers, and, for text
    files below 1 MiB, the same content.
  - A path that is not there is no error; RV(problem) says what is wrong.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  platform:
    description: Target OS/families that can be operated against.
    support: full
    platforms: posix
options:
  path:
    description:
      - The model's folder, as an absolute path. It can be a plain folder, a snapshot in a hub cache, or the folder
        C(models--ORG--NAME) of a hub cache, of which the snapshot C(main) is then looked at.
      - Hidden files and folders are not looked at.
    type: path
    required: true
  tensors:
    description: Tell the tensors of the weights as well, out of the headers of the safetensors files.
    type: bool
    default: false
seealso:
  - module: sparkstack.inference.docker_image_sync
"""

EXAMPLES = r"""
---
- name: Look at the model
  sparkstack.inference.model_manifest_info:
    path: /models/Qwen3.5-122B-A10B-FP8
  become: true
  register: model

- name: Refuse a model that is not whole
  ansible.builtin.assert:
    that: model.complete
    fail_msg: "{{ model.problem }}"
"""

RETURN = r"""
path:
  description: The folder with the model's files. For a hub cache it is the snapshot's.
  returned: always
  type: str
mount:
  description: The folder that must be visible to a container, so that links in RV(path) lead somewhere.
  returned: always
  type: str
exists:
  description: Whether the folder is there.
  returned: always
  type: bool
complete:
  description: Whether the folder has a configuration and all weights, and all of them whole.
  returned: always
  type: bool
problem:
  description: One sentence about the worst that is wrong, or V(null).
  returned: always
  type: str
  sample: model-00007-of-00039.safetensors of the model in /models/Qwen3.5-122B-A10B-FP8 is missing.
files:
  description: The number of files.
  returned: always
  type: int
bytes_total:
  description: The size of all files in bytes.
  returned: always
  type: int
weight_bytes:
  description: The size of the weights in bytes.
  returned: always
  type: int
missing:
  description: The files of weights that the index names and that are not there.
  returned: always
  type: list
  elements: str
truncated:
  description: The files of weights whose size is not the one which their header asks for.
  returned: always
  type: list
  elements: str
dangling:
  description: The links that lead nowhere.
  returned: always
  type: list
  elements: str
unreadable:
  description:
    - The number of files and folders which not everybody can read and which are not root's.
    - A container whose root has no C(DAC_OVERRIDE) can't read them.
  returned: always
  type: int
digest:
  description: A hash by which two nodes can be compared, or V(null) when the folder is not there.
  returned: always
  type: str
config:
  description:
    - What the model's C(config.json) says, as far as it is there, of C(architectures), C(model_type), C(dtype),
      C(num_hidden_layers), C(num_attention_heads), C(num_key_value_heads), C(head_dim), C(hidden_size), C(vocab_size),
      C(num_experts), C(max_position_embeddings), C(quantization_config) with C(quant_method), and of what else decides on
      the memory that a plan reckons with (kinds of layers, sizes of latent vectors and of linear attention).
    - A multimodal model's C(text_config) and C(vision_config) stand in it with the same fields.
  returned: always
  type: dict
tensors:
  description:
    - The tensors of the weights; those whose names differ in numbers only make one entry.
    - It is empty for weights in another format than safetensors.
  returned: with O(tensors)
  type: list
  elements: dict
  contains:
    name:
      description: The tensors' name, with C({}) for each number between dots.
      type: str
      sample: model.layers.{}.mlp.experts.{}.down_proj.weight
    dtype:
      description: The elements' type as safetensors spells it.
      type: str
      sample: F8_E4M3
    shape:
      description: The tensors' shape.
      type: list
      elements: int
    count:
      description: How many there are.
      type: int
    layers:
      description: The values of the name's first number, as runs of the first and the last one.
      type: list
      elements: list
      sample: [[0, 47]]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._model import manifest


def main() -> None:
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "tensors": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )
    path: str = module.params["path"]
    try:
        result = manifest(path, module.params["tensors"])
    except OSError as error:
        module.fail_json(msg=f"Cannot read the model in {path}: {error}. Let this task run with `become`.")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
