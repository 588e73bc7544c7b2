# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank: its process starts as the engine's does, phase by phase, together with all others, and then answers requests."""

import argparse
import dataclasses
import hashlib
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
import typing as t

from . import faults, gloo, memory, nccl, options, rendezvous, weights
from .journal import Bar, Journal
from .system import compute, end_with_parent, knob, set_title

WORDS = "a the one of two and light stone river under slow green house over north small road seven".split()
_MB = 1 << 20


@dataclasses.dataclass
class Rank:
    """What a rank's process is given: the options, its place in the group, its device, and the launcher's pipe."""

    args: argparse.Namespace
    tp_rank: int
    gpu_id: int
    pipe: multiprocessing.connection.Connection

    def main(self) -> None:
        """The process. An exception is told in the log, and to the launcher by SIGQUIT."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent()
        set_title(f"sglang::scheduler_TP{self.tp_rank}")
        self.log = Journal(f"TP{self.tp_rank}")
        launcher = os.getppid()
        try:
            compute(2)  # the engine's imports
            self.start()
            self.run_event_loop()
        except Exception:  # whatever it is
            self.log.say(f"Scheduler hit an exception: {traceback.format_exc()}")
            os.kill(launcher, signal.SIGQUIT)
            sys.exit(1)
        sys.exit(0)

    def start(self) -> None:
        """All phases up to the point where requests are taken."""
        begin = time.monotonic()
        self.timings: dict[str, float] = {}
        self.set_device()
        self.init_torch_distributed()
        self.load_model()
        self.alloc_memory_pool()
        self.capture_graphs()
        self.group.all_gather("ready")
        if self.tp_rank == 0:
            context = self.args.context_length or self.config.get("max_position_embeddings", 32768)
            sizes = f"chunked_prefill_size={self.args.chunked_prefill_size}, max_prefill_tokens={self.args.max_prefill_tokens}"
            room = f"context_len={context}, available_gpu_mem={self.device.free_gb():.2f} GB"
            self.log.say(f"max_total_num_tokens={self.tokens}, {sizes}, max_running_requests={self.args.max_running_requests or 4096}, {room}")
        self.log.say("Tree cache initialized: source=default impl=RadixCache hybrid_swa=False hybrid_ssm=False hierarchical=False streaming_wrapped=False")
        self.timings["scheduler_e2e"] = time.monotonic() - begin
        self.pipe.send(["ready", self.timings])

    def set_device(self) -> None:
        """Take the device."""
        try:
            self.device = memory.set_device(self.gpu_id)
        except faults.AcceleratorError:
            self.log.say(
                f"Context: self.device='cuda' ps.gpu_id={self.gpu_id} os.environ.get('CUDA_VISIBLE_DEVICES')={memory.visible_devices()} "
                f"ps.tp_rank={self.tp_rank} ps.tp_size={self.args.tp_size}"
            )
            raise

    def init_torch_distributed(self) -> None:
        """Meet the others, connect with them, compare the free memory."""
        self.log.say("Init torch distributed begin.")
        begin, before = time.monotonic(), self.device.free()
        host, _, port = (self.args.dist_init_addr or "127.0.0.1:25000").rpartition(":")
        timeout = self.args.dist_timeout or rendezvous.DEFAULT_TIMEOUT
        store = rendezvous.meet(host.strip("[]"), int(port), self.tp_rank, self.args.tp_size, timeout)
        self.group = gloo.connect_full_mesh(store, self.tp_rank)
        if self.tp_rank == 0:
            self.log.say(f"sglang is using nccl=={nccl.VERSION}")
        self.nccl_lines = nccl.Lines(self.gpu_id)
        self.wires = nccl.init_comm(self.group, self.nccl_lines, self.gpu_id)
        if self.args.nnodes > 1:
            self.log.say("CustomAllreduce is disabled because this process group spans across nodes.")
        local = self.device.free()
        self.before = min(self.group.all_gather(local))
        if self.before < local * 0.9:
            raise RuntimeError(
                "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
                f"pre_model_load_memory={self.before / memory.GB}, local_gpu_memory={local / memory.GB}, local_gpu_memory * 0.9={local * 0.9 / memory.GB}"
            )
        self.log.say(f"Init torch distributed ends. elapsed={time.monotonic() - begin:.2f} s, mem usage={(before - self.device.free()) / memory.GB:.2f} GB")

    def load_model(self) -> None:
        """Read every shard, keep this rank's part of it."""
        compute(0.3)
        free = self.device.free()
        self.log.say(f"Load weight begin. avail mem={free / memory.GB:.2f} GB")
        begin = time.monotonic()
        self.config = weights.config(self.args.model_path)
        kind = str((self.config.get("architectures") or ["UnknownForCausalLM"])[0])
        if "num_hidden_layers" not in self.config:
            raise AttributeError(f"'{kind.replace('ForCausalLM', 'Config')}' object has no attribute 'num_hidden_layers'")
        paths = weights.shards(self.args.model_path)
        share = knob("WEIGHT_FACTOR", 1) / self.args.tp_size
        wanted = int(sum(os.path.getsize(path) for path in paths if os.path.exists(path)) * share)
        if wanted > free:
            self.device.take(wanted)
        self.log.say("FlashInfer TRTLLM MoE deferred finalize is disabled (moe_runner_backend=auto, quant_method=UnquantizedFusedMoEMethod).")
        self.group.all_gather()
        self.log.say("multimem all-gather disabled because the TP group spans across nodes.")
        digest = hashlib.sha256(str(self.tp_rank).encode())
        # Only the first rank shows how far it is.
        bar = Bar("Multi-thread loading shards", len(paths), blocks=False) if self.tp_rank == 0 else None
        for path in paths:
            self.load_shard(path, share, digest)
            if bar:
                bar.step()
        if bar:
            bar.close()
        self.digest = digest.hexdigest()
        self.wait_for_all_ranks_to_load()
        self.timings["load_weight"] = time.monotonic() - begin
        after = self.device.free()
        self.log.say(
            f"Load weight end. elapsed={self.timings['load_weight']:.2f} s, type={kind}, "
            f"avail mem={after / memory.GB:.2f} GB, mem usage={(free - after) / memory.GB:.2f} GB."
        )

    def load_shard(self, path: str, share: float, digest: t.Any) -> None:
        """Read a file and keep its part in memory; takes at least as long as a shard is to take."""
        begin = time.monotonic()
        weights.check(path)
        for piece in weights.read(path):
            digest.update(piece)
            size = int(len(piece) * share)
            self.device.keep((piece * (size // len(piece) + 1))[:size])
        compute(max(0, knob("SHARD_SECONDS", 0.25) - (time.monotonic() - begin)))

    def wait_for_all_ranks_to_load(self) -> None:
        """Wait for the others; raises ValueError when one of them ended instead."""
        try:
            self.group.all_gather()
        except RuntimeError:
            text = f"TP rank {self.tp_rank} could finish the model loading, but there are other ranks that ended before: look at their logs."
            raise ValueError(text) from None

    def alloc_memory_pool(self) -> None:
        """Take the key-value cache: of the wanted size where the memory fraction leaves room for it."""
        begin = time.monotonic()
        fraction = self.args.mem_fraction_static or 0.9
        after = min(self.group.all_gather(self.device.free()))
        room = after - self.before * (1 - fraction)
        if room <= 0:
            least = 1 - after / self.before
            raise ValueError(
                f"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction}. Raise --mem-fraction-static above "
                f"{least + 0.0005:.3f} (minimum viable = 1 - available/pre = {least:.4f})."
            )
        size = int(min(room, knob("KV_MB", 64) * _MB))
        heads = max(1, int(self.config.get("num_key_value_heads", 2)) // self.args.tp_size)
        self.tokens = size // (4 * int(self.config["num_hidden_layers"]) * heads * int(self.config.get("head_dim", 64)))
        self.device.take(size)
        half = size / 2 / memory.GB
        self.log.say(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {self.tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB")
        self.timings["kv_cache_allocation"] = time.monotonic() - begin
        self.log.say(f"Memory pool end. avail mem={self.device.free_gb():.2f} GB")

    def capture_graphs(self) -> None:
        """Pass the two captures, a step of all ranks at a time."""
        if self.args.disable_cuda_graph:
            return
        if self.device.free_gb() < 4:
            self.log.say(
                f"Disabling auto-selected prefill CUDA graph: only {self.device.free_gb():.2f} GiB is free after model/KV/eager-buffer allocation; "
                "at least 4.00 GiB is required for capture."
            )
        else:
            self.capture("prefill", "backend=breakable, num_tokens=", "num tokens (num_tokens", 2)
        self.capture("decode", "backend=full, num_tokens_per_req=1, bs=", "batches (bs", 0.6)

    def capture(self, phase: str, what: str, title: str, seconds: float) -> None:
        """One capture; takes so many seconds at pace 1."""
        sizes = options.capture_sizes(phase)
        begin, before = time.monotonic(), self.device.free()
        self.log.say(f"Capture target {phase} CUDA graph begin. {what}{sizes}, avail mem={before / memory.GB:.2f} GB")
        bar = Bar("", len(sizes), blocks=True) if self.tp_rank == 0 else None
        for size in reversed(sizes):
            if bar:
                bar.title = f"Capturing {title}={size} avail_mem={self.device.free_gb():.2f} GB)"
                bar.show()
            compute(seconds / len(sizes))
            self.group.all_gather()
            if bar:
                bar.step()
        if bar:
            bar.close()
        after = self.device.free()
        self.timings[phase] = time.monotonic() - begin
        self.log.say(
            f"Capture target {phase} CUDA graph end. elapsed={self.timings[phase]:.2f} s, "
            f"mem usage={(before - after) / memory.GB:.2f} GB, avail mem={after / memory.GB:.2f} GB."
        )

    def run_event_loop(self) -> None:
        """Answer requests: rank 0 gets them from the launcher and gives them to all; every rank has a part in each answer."""
        while True:
            request = self.group.broadcast(self.next_request() if self.tp_rank == 0 else None)
            if request is None:
                return
            answer = self.forward(request)
            if self.tp_rank == 0:
                self.pipe.send([request["id"], answer])

    def next_request(self) -> dict[str, t.Any] | None:
        """Wait for the launcher, and for nothing else: a rank that ends meanwhile is noticed at once. None: stop."""
        while True:
            ready = multiprocessing.connection.wait([self.pipe, *(wire.socket for wire in self.group.wires.values())])
            for rank, wire in self.group.wires.items():
                if wire.socket in ready:
                    self.group.receive(rank)
            if self.pipe in ready:
                return t.cast("dict[str, t.Any] | None", self.pipe.recv())

    def forward(self, request: dict[str, t.Any]) -> list[str]:
        """The words of an answer: the same for the same prompt and weights. Each rank has numbers that only it knows."""
        if self.tp_rank == 0:
            if request["id"] == 1:
                nccl.first_request(self.nccl_lines)
            self.log.say(
                f"Prefill batch, #new-seq: 1, #new-token: {max(1, len(request['prompt'].split()))}, #cached-token: 0, token usage: 0.00, "
                "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: True, input throughput (token/s): 20.00"
            )
        seeds = (f"{self.digest} {step} {request['prompt']}" for step in range(request["tokens"]))
        mine = [int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") for seed in seeds]
        sums = [sum(parts) for parts in zip(*self.group.all_gather(mine), strict=True)]
        return [WORDS[number % len(WORDS)] for number in sums]
