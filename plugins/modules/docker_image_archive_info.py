#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: docker_image_archive_info
short_description: Tells which images an archive of docker save holds
version_added: 1.0.0
description:
  - Reads the names, the architecture and the content's digest of each image in an archive, without loading it and without Docker.
  - An archive that is loaded takes its names away from other images at once, and only then it would be seen that it is for other machines.
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
      - The archive. It may be compressed with gzip, but then all of it is read.
    type: path
    required: true
seealso:
  - module: community.docker.docker_image_load
  - module: sparkstack.inference.docker_image_sync
"""

EXAMPLES = r"""
---
- name: Look into an archive
  sparkstack.inference.docker_image_archive_info:
    path: /srv/images/engine.tar
  register: archive

- name: Tell what is in it
  ansible.builtin.debug:
    msg: "{{ archive.images | map(attribute='names') | flatten | join(', ') }}"
"""

RETURN = r"""
images:
  description: The archive's images.
  returned: success
  type: list
  elements: dict
  contains:
    names:
      description: The names and tags that the image gets when it is loaded. Empty for one that was saved by its id.
      type: list
      elements: str
    architecture:
      description: The architecture that the image is made for.
      type: str
      sample: arm64
    os:
      description: The operating system that the image is made for.
      type: str
      sample: linux
    digest:
      description: A hash of the image's content, the one that M(sparkstack.inference.docker_image_sync) compares.
      type: str
    layers:
      description: The diff ids of the layers, base first.
      type: list
      elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._image_archive import ArchiveError, images


def main() -> None:
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path: str = module.params["path"]
    try:
        found = images(path)
    except ArchiveError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"The archive {path} can't be read ({error.strerror}): copy it there, or let this task run with `become`.")
    module.exit_json(changed=False, images=found)


if __name__ == "__main__":
    main()
