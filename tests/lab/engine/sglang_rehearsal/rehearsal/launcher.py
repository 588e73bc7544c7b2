# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The first process of a node: reads the options, starts the ranks, serves, and ends as the engine's launcher ends.

Exit codes: 2 for an option that is not known, 1 for a model that is not there or a rank that died while it started, 3 for
a worker whose rank has ended. A crash is answered with SIGKILL to itself (137), which has no effect on a container's first
process: that one ends with 0.
"""

import argparse
import multiprocessing
import multiprocessing.process
import os
import resource
import signal
import sys
import threading
import time
import traceback
import typing as t

from . import options, serve, weights
from .journal import Journal, write
from .scheduler import Rank
from .system import compute, end_with_parent, set_title

_FORK = multiprocessing.get_context("fork")
POLL = 5
"""Seconds between two looks at a rank that is starting."""


def _idle(title: str) -> None:
    end_with_parent()
    set_title(title)
    while True:
        signal.pause()


class Launcher:
    """The node's ranks, and what becomes of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.log, self.serving = args, Journal(), False
        self.children: list[multiprocessing.process.BaseProcess] = []
        self.schedulers: list[tuple[multiprocessing.process.BaseProcess, t.Any]] = []
        self.timings: dict[str, float] = {}

    @property
    def pid(self) -> int:
        """The launcher's own; 1 in a container."""
        return os.getpid()

    def start(self) -> None:
        """Start the processes, before there is any thread."""
        each = max(1, self.args.tp_size // self.args.nnodes)
        for index in range(each):
            ours, theirs = _FORK.Pipe()
            rank = Rank(self.args, self.args.node_rank * each + index, self.args.base_gpu_id + index, theirs)
            child = _FORK.Process(target=rank.main)
            child.start()
            theirs.close()
            self.schedulers.append((child, ours))
            self.children.append(child)
        if self.args.node_rank == 0:
            child = _FORK.Process(target=_idle, args=("sglang::detokenizer",))
            child.start()
            self.children.append(child)

    def wait(self) -> None:
        """Wait until all ranks of the node are ready; raises RuntimeError when one has died without a word."""
        for index, (child, pipe) in enumerate(self.schedulers):
            while True:
                try:
                    if pipe.poll(POLL):
                        self.timings = pipe.recv()[1]
                        break
                except (EOFError, OSError):
                    child.join()
                if not child.is_alive():
                    raise RuntimeError(
                        f"Rank {index} scheduler died during initialization (exit code: {child.exitcode}). If exit code is -9 (SIGKILL), "
                        "a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
                    )

    def kill_tree(self) -> t.NoReturn:
        """End the children and itself."""
        self.log.say(f"kill_process_tree called: parent_pid={self.pid}, include_parent=True, pid={self.pid}")
        for child in self.children:
            child.kill()
        for child in self.children:
            child.join()
        os.kill(self.pid, signal.SIGKILL)
        sys.exit(0)

    def on_sigquit(self, _number: int, _frame: t.Any) -> None:
        """A rank has failed and said so."""
        for number in (signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if self.serving:
            self.log.say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            self.log.say("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
            time.sleep(5)
            self.log.say("No live scheduler processes found; skipping py-spy and CUDA coredump.")
        else:
            self.log.say("Received sigquit from a child process. It usually means the child failed.")
        self.kill_tree()

    def on_sigterm(self, engine: serve.Engine) -> None:
        """A stop on request: all ranks end in order, then the launcher."""
        self.log.say("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        time.sleep(1)
        engine.stop()
        self.schedulers[0][0].join(5)
        try:
            self.kill_tree()
        except SystemExit:
            second = "During handling of the above exception, another exception occurred:\n\nasyncio.exceptions.CancelledError\n"
            self.log.say(f"ERROR:    {traceback.format_exc()}\n{second}")
            raise

    def head(self) -> t.NoReturn:
        """Serve until the end."""
        graphs = f"prefill={self.timings.get('prefill', 0):.2f}, decode={self.timings.get('decode', 0):.2f}, target_verify=0.00, draft_prefill=0.00"
        self.log.say(
            f"Engine startup timings (s): load_weight={self.timings['load_weight']:.2f}, kv_cache_allocation={self.timings['kv_cache_allocation']:.2f}, "
            f"scheduler_e2e={self.timings['scheduler_e2e']:.2f}, cuda_graph={{{graphs}}}, tokenizer_e2e={self.timings['scheduler_e2e'] + 2:.2f}"
        )
        engine = serve.Engine(self.schedulers[0][1])
        self.serving = True
        signal.signal(signal.SIGTERM, lambda _number, _frame: self.on_sigterm(engine))
        self.log.say(f"INFO:     Started server process [{self.pid}]")
        self.log.say("INFO:     Waiting for application startup.")
        self.log.say("INFO:     Application startup complete.")
        try:
            server = serve.api(engine, self.args, self.log)
        except OSError as error:
            place = (self.args.host, self.args.port)
            self.log.say(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {place}: {os.strerror(error.errno or 0).lower()}")
            self.log.say("INFO:     Waiting for application shutdown.")
            self.log.say("INFO:     Application shutdown complete.")
        else:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.log.say(f"INFO:     Uvicorn running on http://{self.args.host}:{self.args.port} (Press CTRL+C to quit)")
            threading.Thread(target=self.warm_up, daemon=True).start()
        child = self.schedulers[0][0]
        while child.is_alive():
            time.sleep(1)
        self.log.say(f"Subprocess scheduler_0 (pid={child.pid}) crashed with exit code {child.exitcode}. Triggering SIGQUIT for cleanup...")
        self.on_sigquit(0, None)
        raise SystemExit(0)

    def warm_up(self) -> None:
        """The requests that the engine asks itself, and its last word."""
        if not self.args.skip_server_warmup:
            try:
                serve.warm_up(self.args)
            except OSError as error:
                self.log.say(f"Initialization failed. warmup error: {error}")
                os.kill(self.pid, signal.SIGQUIT)
                return
        self.log.say("The server is fired up and ready to roll!")

    def worker(self) -> t.NoReturn:
        """Wait for the ranks to end: the dummy server is all that a worker serves."""
        serve.dummy(self.args.host, self.args.port)
        self.log.say(f"Dummy health check server started in background thread at {self.args.host}:{self.args.port}")
        for child, _pipe in self.schedulers:
            # Not join(): a signal's handler must have its turn.
            while child.is_alive():
                time.sleep(0.05)
            self.log.say(f"Scheduler or DataParallelController {child.pid} terminated with {child.exitcode}")
        self.log.say(f"INFO:     Started server process [{self.pid}]")
        self.log.say("INFO:     Waiting for application startup.")
        try:
            nothing: t.Any = None
            nothing.server_args  # noqa: B018  (what the engine does there)
        except AttributeError:
            self.log.say(f"ERROR:    {traceback.format_exc()}")
        self.log.say("ERROR:    Application startup failed. Exiting.")
        sys.exit(3)


def _raise_file_limit(log: Journal) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (65535, max(65535, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    except ValueError:
        log.say("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")


def main() -> None:
    """One node, from its command line to its exit code."""
    write("rehearsal: this is the lab's rehearsal of SGLang 0.5.17, not SGLang; it computes no model.\n")
    args = options.parser().parse_args()
    try:
        weights.config(args.model_path)
    except OSError:
        write(traceback.format_exc())
        sys.exit(1)
    args.mem_fraction_static = args.mem_fraction_static or 0.9
    args.served_model_name = args.served_model_name or args.model_path
    launcher = Launcher(args)
    compute(0.3)
    _raise_file_limit(launcher.log)
    launcher.log.say(options.server_args(args))
    signal.signal(signal.SIGQUIT, launcher.on_sigquit)
    launcher.start()
    if args.node_rank == 0:
        launcher.log.say("Using default HuggingFace chat template with detected content format: string")
    try:
        launcher.wait()
    except RuntimeError:
        write(traceback.format_exc())
        launcher.log.say(f"kill_process_tree called: parent_pid={launcher.pid}, include_parent=False, pid={launcher.pid}")
        for child in launcher.children:
            child.kill()
        sys.exit(1)
    if args.node_rank == 0:
        launcher.head()
    launcher.worker()
