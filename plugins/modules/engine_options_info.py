#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_options_info
short_description: The options that the engine in an image accepts
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Asks the option parser of the engine in an image for its options, and keeps the answer on the node for the image's content.
  - To ask, a container without a network is started once for each image, and removed when it has answered. It loads no model.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  check_mode:
    details:
      - In check mode the image is asked as well, since nothing else can tell; the answer is not kept.
options:
  image:
    description:
      - The image by name and tag. It must be on the node.
    type: str
    required: true
  engine:
    description:
      - The engine that is in the image.
    type: str
    choices: [sglang, vllm]
    required: true
  gpus:
    description:
      - Show the GPUs to the container, since some engines cannot be imported without their driver.
    type: bool
    default: false
  network:
    description:
      - Tell in RV(network) what the image brings of the network's variables, too, which M(sparkstack.inference.fabric_environment_info) judges.
    type: bool
    default: false
  cache_dir:
    description:
      - The folder on the node that keeps the answers.
    type: path
    default: /var/cache/sparkstack/options
  timeout:
    description:
      - Seconds that the engine may take to be imported and to answer.
    type: int
    default: 300
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
seealso:
  - module: sparkstack.inference.inference_plan
"""

EXAMPLES = r"""
---
- name: Ask vLLM for its options
  sparkstack.inference.engine_options_info:
    image: vllm/vllm-openai:v0.32.0
    engine: vllm
  register: parser
"""

RETURN = r"""
parser:
  description: The engine's option parser, or V(none) when the image could not tell.
  returned: always
  type: dict
  contains:
    version:
      description: The engine's version.
      type: str
    options:
      description: The options, each with its C(flags), C(nargs), C(type) and C(choices).
      type: list
      elements: dict
    packages:
      description: The Python packages that the image has, of those that only some images have and a recipe can ask for, such as C(ray).
      type: list
      elements: str
problem:
  description: Why the image could not tell, in one sentence, or V(none).
  returned: always
  type: str
network:
  description: >-
    With O(network), what the image brings of the network's variables, as RV(sparkstack.inference.fabric_environment_info#module:image);
    V(none) where it could not be read.
  returned: always
  type: dict
cached:
  description: Whether the answer was there already.
  returned: always
  type: bool
"""

import hashlib
import json
import os
import typing as t
from urllib.parse import quote

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _answers, _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, DockerUnreachable, demultiplex
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._parser import OPTIONS_MARK
from ansible_collections.sparkstack.inference.plugins.module_utils._image_files import brought
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import identity
from ansible_collections.sparkstack.inference.plugins.module_utils._options import read_description


def ask(api: DockerAPI, params: t.Mapping[str, t.Any], source: str) -> t.Tuple[int, str]:
    """Run the parser's program in the image; its exit code and all that it printed. Raises DockerError."""
    host: t.Dict[str, t.Any] = {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "8m"}},
    }
    if params["gpus"]:
        host["DeviceRequests"] = [{"Count": -1, "Capabilities": [["gpu"]]}]
    wanted = {"Image": params["image"], "Entrypoint": ["python3", "-c", source], "Cmd": [], "HostConfig": host}
    with api.request("POST", "/containers/create", body=wanted) as response:
        container = "/containers/" + quote(json.loads(response.read().decode())["Id"])
    try:
        api.request("POST", container + "/start").close()
        try:
            with api.request("POST", container + "/wait") as response:
                code = json.loads(response.read().decode())["StatusCode"]
        except (DockerUnreachable, OSError) as error:
            # Docker sends the status at once and the rest when the container has ended.
            raise DockerError("{image} did not tell its options within {timeout} s.".format(**params)) from error
        with api.request("GET", container + "/logs", {"stdout": "true", "stderr": "true"}) as response:
            output = b"".join(payload for _stream, payload in demultiplex(response.read)).decode("utf-8", "replace")
    finally:
        api.request("DELETE", container, {"force": "true", "v": "true"}).close()
    return code, output


def of_network(api: DockerAPI, inspection: t.Mapping[str, t.Any], params: t.Mapping[str, t.Any], keep: bool) -> t.Optional[t.Dict[str, t.Any]]:
    """What the image brings of the network's variables; None when nobody asks, or Docker or the disk fails: the options are told all the same."""
    if not params["network"]:
        return None
    try:
        return brought(api, inspection, params["image"], params["cache_dir"], keep)
    except (DockerError, OSError):
        return None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "engine": {"type": "str", "required": True, "choices": sorted(_engines.ENGINES)},
            "gpus": {"type": "bool", "default": False},
            "network": {"type": "bool", "default": False},
            "cache_dir": {"type": "path", "default": "/var/cache/sparkstack/options"},
            "timeout": {"type": "int", "default": 300},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    params = module.params
    engine = _engines.get(params["engine"])
    api = DockerAPI(params["docker_socket"], timeout=params["timeout"])
    network = None
    try:
        inspection = api.image(params["image"]) or {}
        if not inspection:
            module.exit_json(changed=False, parser=None, network=None, cached=False, problem="The image {image} is not on this node.".format(**params))
        network = of_network(api, inspection, params, not module.check_mode)
        digest = identity(inspection)["digest"].split(":")[-1]
        # Another version of this collection may ask otherwise.
        asked = hashlib.sha256(engine.launch.parser_source.encode()).hexdigest()[:8]
        path = os.path.join(params["cache_dir"], f"{engine.name}-{digest}-{asked}.json")
        described = _answers.kept(path)
        if described:
            module.exit_json(changed=False, parser=described, network=network, cached=True, problem=None)
        code, output = ask(api, params, engine.launch.parser_source)
    except DockerError as error:
        module.exit_json(changed=False, parser=None, network=network, cached=False, problem=str(error))
    line = read_description(output, OPTIONS_MARK) or ""
    if not line:
        tail = " / ".join(text.strip() for text in output.strip().splitlines()[-3:])
        module.exit_json(
            changed=False,
            parser=None,
            network=network,
            cached=False,
            problem="{} in {} did not tell its options (exit code {}): {}".format(engine.title, params["image"], code, tail or "it printed nothing"),
        )
    described = json.loads(line)
    if not module.check_mode:
        _answers.keep(path, described)
    module.exit_json(changed=False, parser=described, network=network, cached=False, problem=None)


if __name__ == "__main__":
    main()
