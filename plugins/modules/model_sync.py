#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: model_sync
short_description: Bring a model's folder from one node to all others over the fabric
version_added: 1.0.0
description:
  - Compares the folder O(path) on all nodes of the play, and brings from the node O(source) what the others lack or have otherwise.
    Nothing moves where all is equal, and of a file that differs only the chunks that do.
  - Without O(checksum), a file counts as equal when its size, its time, and its safetensors header (of small text files, the content) are.
    One that differs in any of these is compared by content before anything of it moves.
  - Each chunk that moves is proved by a digest. A file gets its name when all of its chunks are right and on the disk; until then it lies in a
    hidden folder C(.sparkstack-sync) beside. What was interrupted, whatever by, goes on where it stopped.
  - The copy goes past the page cache on both sides, in several streams over all addresses that are given.
  - The nodes make a chain. Each gives on what it gets, while it gets it, so that many nodes cost little more than one.
    Where a node of the chain fails, those behind it ask the ones before it.
  - Only the nodes of the task talk, with a one-time token, on the addresses that are given. Nothing listens any more when the task is done, or half
    a minute after the controller has vanished. No SSH between the nodes is needed.
  - A copy of the same folder that runs already, begun by another run, is watched to its end first.
  - The task must run on all nodes at the same time, the source among them. It needs as many C(forks) as there are nodes. It can't be retried with
    C(until).
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - With O(checksum) the files are read and compared, which takes its time and changes nothing.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    description: The nodes run Linux with Python 3.8 or later.
    support: full
    platforms: linux
options:
  path:
    description:
      - The model's folder on the source, as an absolute path. Hidden files in it are not copied.
      - Links are followed, and what they lead to is copied as files. A link that leads nowhere is an error.
      - Of a hub cache (C(models--ORG--NAME)) the snapshot that C(refs/main) names is copied, to the same place below the folder.
    type: str
    required: true
  dest:
    description:
      - The folder on the other nodes.
      - When it is not given, the same as O(path).
    type: str
  source:
    description:
      - The node that has the model, by its name in the inventory. It must take part in the task.
    type: str
    required: true
  addresses:
    description:
      - The own addresses of each node on the fabric, one for each rail that is to be used.
      - Two nodes use those that are in the same subnet, or, where none are, those at the same place of their lists.
    type: list
    elements: str
    required: true
    aliases: [address]
  port:
    description:
      - The TCP port on which each node serves the others.
      - V(0) takes one that is free. Set another one where a firewall lets only certain ports pass.
    type: int
    default: 0
  streams:
    description:
      - How many connections each node has at the same time, over all rails together.
    type: int
    default: 8
  checksum:
    description:
      - Believe neither size nor time. Every file is read on both sides and compared by content, and what was written is read back from the disk
        before it gets its name.
    type: bool
    default: false
  digest:
    description:
      - What chunks are proved by.
      - V(gmac) is an authentication code of 128 bits under a key that is no secret. It finds any accident, at several gigabytes a second and core.
      - V(sha256) also stands up to who forges files, and is several times slower on many processors.
      - V(auto) takes V(gmac) where all nodes have it. A node that lacks it, as its Python has no OpenSSL, makes all take V(sha256).
    type: str
    choices: [auto, gmac, sha256]
    default: auto
  delete_extra:
    description:
      - Delete files on the other nodes that the source does not have. Hidden files stay, as do other snapshots of a hub cache.
      - Otherwise they are only told in RV(extra).
    type: bool
    default: false
  tls:
    description:
      - Encrypt what crosses the fabric, by TLS with a certificate for this task alone, whose fingerprint goes by way of the controller.
      - It costs processor time on both sides; see the guide for how much.
    type: bool
    default: false
  transport:
    description:
      - V(fabric) is all that is described above.
      - V(rsync) has each node fetch by rsync over ssh from the source's first address, for nodes that trust each other by ssh keys. It is slower, and
        nothing is given on from node to node.
    type: str
    choices: [fabric, rsync]
    default: fabric
  rsync_options:
    description:
      - More options for rsync, such as V(--bwlimit=200M).
    type: list
    elements: str
    default: []
  members:
    description:
      - The hosts that run this task together.
      - When it is not given, the hosts of the play.
    type: list
    elements: str
  progress:
    description:
      - Seconds from one line of progress to the next, on each node that gets something. V(0) has none.
    type: int
    default: 5
  join_timeout:
    description:
      - Seconds until every node must have reported what it has.
    type: int
    default: 60
  connect_timeout:
    description:
      - Seconds until a node must have reached the source on the fabric, also after a connection broke.
    type: int
    default: 30
  stall_timeout:
    description:
      - Seconds without a sign of the other end after which a connection counts as broken.
    type: int
    default: 60
  timeout:
    description:
      - Seconds after which a node gives up in any case.
    type: int
    default: 14400
seealso:
  - module: ansible.posix.synchronize
  - module: sparkstack.inference.model_manifest_info
  - module: sparkstack.inference.docker_image_sync
  - module: sparkstack.inference.model_sync_node
notes:
  - New files and folders belong to whom the folder around them belongs to. Everybody may read them, as a container must.
  - A node on which the task fails does not keep the others from getting the model.
  - The digests of files that are untouched since are kept in C(/var/cache/sparkstack/staging), so that they are not read again. They may be deleted
    at any time.
"""

EXAMPLES = r"""
---
- name: Bring a model to all nodes
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Have the head's model on every node
      sparkstack.inference.model_sync:
        path: /srv/models/Qwen3.5-122B-A10B-FP8
        source: "{{ groups['head'] | first }}"
        addresses: "{{ fabric_address }}"
      become: true
      register: model

    - name: Show what moved
      ansible.builtin.debug:
        msg: "{{ model.bytes_sent }} of {{ model.bytes_total }} bytes at {{ model.throughput_mb_s }} MB/s"

- name: Prove every byte on every node, and delete what does not belong to the model
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Compare by content, over both rails
      sparkstack.inference.model_sync:
        path: /srv/models/Qwen3.5-122B-A10B-FP8
        source: spark1
        addresses: "{{ [fabric_address, second_rail_address] }}"
        checksum: true
        delete_extra: true
      become: true
"""

RETURN = r"""
actions:
  description: What was done on this node, or would be in check mode. Empty when nothing is needed, and on the source.
  returned: success
  type: list
  elements: str
  sample: ["copy /srv/models/Qwen3.5-122B-A10B-FP8 from spark1: 45 files are missing (all), 127.8 GB at most"]
bytes_total:
  description: The size of the model's files in bytes.
  returned: success
  type: int
bytes_sent:
  description: Bytes of files that crossed the fabric to this node; from the source, to all that asked it.
  returned: success
  type: int
seconds:
  description: How long the copy took on this node.
  returned: success
  type: float
throughput_mb_s:
  description: RV(bytes_sent) in megabytes (1000000 bytes) a second of RV(seconds).
  returned: success
  type: float
cpu_seconds:
  description: Processor seconds that the copy took on this node, or V(null) where nothing was copied or another program did it.
  returned: success
  type: float
verified:
  description: Whether this node was seen to have what the source has.
  returned: success
  type: bool
moved:
  description: The files of which something came, or would come in check mode with O(checksum).
  returned: success
  type: list
  elements: str
extra:
  description: Files of this node that the source does not have.
  returned: success
  type: list
  elements: str
deleted:
  description: Those of them that were deleted.
  returned: success
  type: list
  elements: str
"""
