#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: init_phase_wait
short_description: Watch all ranks of a launch until they are ready, or say which one failed, and why
version_added: 1.0.0
description:
  - Follows the start of an inference engine that runs on several nodes, phase by phase, by the logs of all its ranks together, and ends with one verdict
    for the group. The same verdict comes back on every host.
  - One task over all ranks watches the whole group. As soon as one rank has failed, every rank's task ends, since the others would go on waiting for it.
  - A failure names the cause, the node that is to blame, the log lines that decide with the whole traceback, and what to do. The first rank to fail is
    often not that node.
  - A rank counts as stalled when the whole group makes no progress of any kind, neither in the logs nor in reads and memory, for longer than its phase may
    take, or for half a minute where the reason shows itself, such as a fabric that does not answer any more or a stopped process. A slow start is no failure.
  - Beside the logs it goes by the containers' states, the kernel's messages, the sockets of the rendezvous port, the fabric, the memory, and what the processes
    and GPUs do. Before it says that ranks are stalled, or of a failure that the log does not explain by itself, it looks at all nodes closely, once.
  - The nodes' clocks may differ. Times are corrected by what the controller sees, and a difference is told.
  - The ranks see each other through the controller, not through the network under test. Nothing connects to the rendezvous port.
  - With O(logs) it judges log files on the controller, and needs neither Docker nor a node.
  - It prints a line for each rank when its phase changes, and one each 30 seconds when nothing does.
  - It only reads. After an interruption run it again, and it goes on watching.
  - It can't be retried with C(until) nor looped, and needs as many C(forks) as there are ranks.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on the controller.
    support: full
  check_mode:
    support: full
    details:
      - It judges what there is now, and never fails. Where there is no container yet, the task is skipped.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
  platform:
    description: The nodes run Linux with Docker Engine 20.10 or later. With O(logs) nothing is needed on them.
    support: full
    platforms: linux
options:
  container:
    description:
      - The name or the id of the container of this host's rank.
      - Exactly one of O(container) and O(logs) must be given.
    type: str
  logs:
    description:
      - The log files to judge, one entry for each rank.
    type: list
    elements: dict
    suboptions:
      node:
        description: The name of the node.
        type: str
        required: true
      rank:
        description: Its rank, V(0) for the head.
        type: int
        required: true
      path:
        description: The file on the controller. Not needed where O(logs[].started) is V(false).
        type: path
      started:
        description: Whether the rank has ever run.
        type: bool
        default: true
      running:
        description:
          - Whether it still runs.
          - When it is not given, it runs unless O(logs[].exit_code) is given.
        type: bool
      exit_code:
        description: The exit code of its container.
        type: int
      oom_killed:
        description: Whether Docker says that the kernel killed it for lack of memory.
        type: bool
      quiet_seconds:
        description:
          - Seconds since its last line.
          - When it is not given, the seconds since the file was written to.
        type: float
  engine:
    description:
      - The engine. With V(auto), the logs tell.
    type: str
    choices: [auto, sglang, vllm]
    default: auto
  until:
    description:
      - The phase that all ranks must have come to. A rank whose log shows no more is not waited for.
    type: str
    choices: [container, parse_args, init_dist, create_runner, load_weights, kv_cache, graph_capture, engine_ready, http_warmup, ready]
    default: ready
  timeout:
    description:
      - Seconds in all.
      - With V(0), it judges what there is now and returns, and never fails for what it finds. Nothing is printed meanwhile.
    type: float
    default: 1800
  stall_timeouts:
    description:
      - Seconds without progress after which a phase counts as stalled, by phase.
      - A phase that is not given keeps its default, which is C(container) 60, C(parse_args) 300, C(init_dist) 120, C(create_runner) 120, C(load_weights) 240,
        C(kv_cache) 600, C(graph_capture) 600, C(engine_ready) 120 and C(http_warmup) 600.
      - While a rank uses the processor, as when it compiles, it gets three times as long, except in C(init_dist).
    type: dict
    default: {}
  health_url:
    description:
      - The URL that must answer with status 200 as well before the rank counts as ready. It is asked from the node itself.
      - Give it on the head only. A worker's own health page says nothing of the group.
    type: str
  closer_look:
    description:
      - When to look closely at all nodes, which takes seconds. It collects the stacks of the engine's processes (with py-spy, where the image has it), what
        they wait in, who holds memory, the sockets, the fabric, the GPUs' power, and the kernel's messages.
      - V(when_needed) is before ranks are called stalled, and after a failure that the log does not explain by itself.
      - V(always) is before any verdict, V(never) leaves it out.
    type: str
    choices: [when_needed, always, never]
    default: when_needed
  rank:
    description:
      - The rank of this host.
      - When it is not given, its place in O(members), from 0.
    type: int
  members:
    description:
      - The hosts of the group, the head first.
      - When it is not given, the hosts of the play, in the order of the play.
    type: list
    elements: str
  join_timeout:
    description:
      - Seconds until every host must have taken part in the task, and until a node or a Docker daemon that does not answer any more counts as lost.
    type: float
    default: 30
  docker_host:
    description:
      - The unix socket of the node's Docker daemon.
      - Its path alone will do too.
    type: str
    aliases: [docker_socket]
    default: unix:///var/run/docker.sock
seealso:
  - module: sparkstack.inference.init_phase_probe
  - module: sparkstack.inference.inference_launch
  - module: sparkstack.inference.inference_proof
"""

EXAMPLES = r"""
---
- name: Watch all ranks until the head is ready
  sparkstack.inference.init_phase_wait:
    container: qwen-rank{{ rank }}
    engine: sglang
    rank: "{{ rank }}"
    health_url: "{{ 'http://127.0.0.1:30000/health' if rank == 0 else omit }}"
    timeout: 1800
  become: true

- name: Judge what there is now
  sparkstack.inference.init_phase_wait:
    container: qwen-rank{{ rank }}
    timeout: 0
  become: true
  register: launch

- name: Judge two logs from anywhere
  sparkstack.inference.init_phase_wait:
    logs:
      - node: spark1
        rank: 0
        path: head.log
        running: true
      - node: spark2
        rank: 1
        path: worker.log
        exit_code: 137
    timeout: 0
  delegate_to: localhost
  run_once: true
  register: launch
"""

RETURN = r"""
verdict:
  description:
    - V(ready) when the head serves and all ranks run.
    - V(starting) while there is progress.
    - V(stalled) when no rank has made progress for too long, or one retries in vain.
    - V(failed) when a rank has ended or will not recover.
    - None in check mode where there is no container, and where the options were refused.
  type: str
  returned: always
  sample: failed
phase:
  description: V(ready) when the verdict is, otherwise the phase of the least advanced rank.
  type: str
  returned: always
  sample: init_dist
cause:
  description:
    - The cause, or none where nothing is wrong, or where only the silence is known.
    - One of V(oom), V(ray_oom_kill), V(memory_unbalanced), V(bad_flag), V(unsupported_arch), V(rendezvous_timeout), V(peer_exited), V(gloo_wrong_iface),
      V(nccl_hang), V(ib_error), V(nccl_error), V(nccl_timeout), V(net_unreachable), V(custom_allreduce_ipc), V(port_in_use), V(missing_weights),
      V(permission), V(wrong_image_arch), V(bad_image), V(unsupported_gpu_arch), V(driver), V(capture_failed), V(worker_died), V(killed), V(watchdog) and
      V(unknown).
  type: str
  returned: always
  sample: oom
culprit:
  description: The node that is to blame, or none where no single node is. Each node's own cause stands in RV(nodes).
  type: str
  returned: always
  sample: spark2
summary:
  description: One sentence that says what happened.
  type: str
  returned: always
  sample: "spark2 (rank 1) ran out of memory in phase parse_args: torch.AcceleratorError: CUDA error: out of memory."
remedy:
  description: One sentence that says what to do.
  type: str
  returned: always
evidence:
  description: The log lines that decide, whole, with the full traceback when there is one. API keys and tokens are replaced by asterisks.
  type: list
  elements: str
  returned: always
notes:
  description: What is worth knowing beside the verdict, in sentences, such as clocks that differ, a slow transport, or earlier starts in the same log.
  type: list
  elements: str
  returned: always
nodes:
  description: What is known of each rank, by the name of its node.
  type: dict
  returned: always
  contains:
    rank:
      description: Its rank.
      type: int
    phase:
      description: The furthest phase that its log shows, or none when it never ran.
      type: str
    cause:
      description: What its own log and container tell, or none. It may be the echo of another rank's failure.
      type: str
    state:
      description:
        - V(running), V(ready), V(paused), V(exited), V(absent) when there is no container, or V(unreachable) when nothing is known of it.
      type: str
    progress:
      description: How far the phase is, as C(percent), C(done) and C(total), or none when the log doesn't tell.
      type: dict
    seconds_in_phase:
      description: Seconds since the phase began, or none.
      type: float
    quiet_seconds:
      description: Seconds without progress, or none.
      type: float
    exit_code:
      description: The exit code of its container, or none. It says little, a crashed engine can end with 0.
      type: int
    oom_killed:
      description: Whether Docker says that the kernel killed it for lack of memory.
      type: bool
    guarded:
      description: Its node's M(sparkstack.inference.memory_guard) has stopped it.
      type: bool
    guard:
      description:
        - What the guard told then, with every point of the memory's curve, see the guard of RV(sparkstack.inference.init_phase_probe#module:scene), or none.
      type: dict
    memory:
      description:
        - The node's memory while the watch looked, C(total) (bytes) and C(curve), pairs of a time (seconds since the epoch by the node's clock) and the bytes
          that were available then, 300 or so at most; or none for a log file and where it is not known.
      type: dict
    restarts:
      description: How often Docker has started its container again, or none for a log file.
      type: int
    last_line:
      description: The last line of its log.
      type: str
    timeline:
      description:
        - The phases that it came to, each with C(phase), C(time) (seconds since the epoch by the log), C(seconds) that it took, and C(values), the numbers that
          its lines carry.
      type: list
      elements: dict
    earlier_runs:
      description: Earlier runs in the same log, or before Docker started the container again, each with C(phase) and C(cause).
      type: list
      elements: dict
    nccl:
      description: What NCCL's own lines tell, if it was asked for them (C(NCCL_DEBUG=INFO)); otherwise empty.
      type: dict
    clock_offset:
      description: Seconds by which the node's clock is ahead of the controller's, or none for a log file.
      type: float
    closeup:
      description: What the close look at the node told, see M(sparkstack.inference.init_phase_closeup), or none where there was none.
      type: dict
"""
