# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""All that is particular to SGLang."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._argv import CACHE, render
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._parser import DUMP
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Engine, Launch, RankSpec

# How it is started.


# SGLang takes its API key as an option only; this keeps the key out of the container's command line.
_WITH_KEY = (
    "import os, runpy, sys; sys.argv += ['--api-key', os.environ['SGLANG_API_KEY']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)


def _command(spec: RankSpec) -> t.List[str]:
    argv = ["python3", "-c", _WITH_KEY] if spec.with_api_key else ["python3", "-m", "sglang.launch_server"]
    argv += ["--model-path", spec.model_path, "--served-model-name", spec.served_name]
    argv += ["--tp-size", str(spec.tensor_parallel_size), "--nnodes", str(spec.ranks), "--node-rank", str(spec.rank)]
    argv += ["--dist-init-addr", "{0}:{1}".format(spec.head_address, spec.rendezvous_port)]
    # A worker serves a dummy /health on the same port; it is not for the office network.
    argv += ["--host", spec.listen_address if spec.rank == 0 else "127.0.0.1", "--port", str(spec.port)]
    return argv + render(spec.arguments, negation=None)


def _environment(spec: RankSpec) -> t.Dict[str, str]:
    return {
        # Without it the message queue may advertise the Wi-Fi's address and TP=2 freezes after
        # "CustomAllreduce is disabled because this process group spans across nodes."
        "SGLANG_HOST_IP": spec.address,
        "HOST_IP": spec.address,
        "SGLANG_CACHE_DIR": CACHE + "/sglang",
        "SGLANG_JIT_CACHE_DIR": CACHE + "/sglang-jit",
    }


LAUNCH = Launch(
    port=30000,
    rendezvous_port=25000,
    command=_command,
    environment=_environment,
    owned=frozenset(
        "model-path model served-model-name tp-size tensor-parallel-size pp-size pipeline-parallel-size nnodes node-rank "
        "dist-init-addr nccl-init-addr host port api-key".split()
    ),
    # What vLLM calls the same thing.
    equivalents={
        "gpu-memory-utilization": "mem-fraction-static",
        "max-model-len": "context-length",
        "max-num-seqs": "max-running-requests",
        "max-num-batched-tokens": "chunked-prefill-size",
        "enforce-eager": "disable-cuda-graph",
        "distributed-timeout-seconds": "dist-timeout",
        "master-addr": "dist-init-addr",
        "seed": "random-seed",
        "moe-backend": "moe-runner-backend",
        "no-enable-prefix-caching": "disable-radix-cache",
    },
    parser_source=DUMP
    + """
from sglang.srt.server_args import ServerArgs
from sglang.version import __version__

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
dump(parser, __version__)
""",
    abbreviations=True,
    underscores=False,
    negations=(),
    api_key_variable="SGLANG_API_KEY",
)

ENGINE = Engine(name="sglang", title="SGLang", launch=LAUNCH)
