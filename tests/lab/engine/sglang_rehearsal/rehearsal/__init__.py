# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's rehearsal of SGLang 0.5.17 on several nodes: it does to its surroundings what the engine does, without a GPU.

A fault made for real on a node (a port taken, a cable out, a file cut, a process killed or frozen, too little memory) meets
real sockets, files, processes and memory here, so it shows itself in the lines and exit codes that SGLang has for it.
The lines' shape and order are those of the recorded logs in tests/fixtures/logs/sglang-gpu.

launcher    the first process: options, children, HTTP server, signals, the end
scheduler   one process a rank: the phases of its start, then requests
rendezvous  rank 0's store on --dist-init-addr, which the others dial
gloo, nccl  the connections between all ranks; collectives over them
weights, memory    the model's files, and what is taken of the node's memory
options, journal, system, faults, net    what all of these use

Environment (numbers unless told otherwise):
  REHEARSAL_PACE 1            all waits that stand for computing are multiplied with it
  REHEARSAL_SHARD_SECONDS .25 the least that a shard takes to load
  REHEARSAL_WEIGHT_FACTOR 1   memory for the weights: the files' bytes times this, split over the ranks
  REHEARSAL_KV_MB 64          memory for the key-value cache, a rank
  REHEARSAL_CONTEXT_MB 32     memory for the device context, a rank
  REHEARSAL_GPUS 1            devices of a node
  REHEARSAL_NET Socket        what NCCL's lines say of the network: Socket or IB
"""
