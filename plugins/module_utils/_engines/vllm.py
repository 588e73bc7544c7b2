# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""All that is particular to vLLM."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._argv import CACHE, render
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._parser import DUMP
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Engine, Launch, RankSpec

# How it is started.


def _command(spec: RankSpec) -> t.List[str]:
    argv = ["vllm", "serve", spec.model_path, "--served-model-name", spec.served_name]
    argv += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
    # Native multi-node mode, since 0.11.1. "nnodes > 1 can only be set when distributed executor backend is mp, uni or
    # external_launcher."; a CPU build doesn't choose mp by itself, so it is said.
    argv += ["--nnodes", str(spec.ranks), "--node-rank", str(spec.rank), "--distributed-executor-backend", "mp"]
    argv += ["--master-addr", spec.head_address, "--master-port", str(spec.rendezvous_port)]
    if spec.rank == 0:
        argv += ["--host", spec.listen_address, "--port", str(spec.port)]
    else:
        argv += ["--headless"]
    return argv + render(spec.arguments, negation="no-")


def _environment(spec: RankSpec) -> t.Dict[str, str]:
    return {
        "VLLM_HOST_IP": spec.address,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": CACHE + "/vllm",
        # The message queue's reader waits that long for a rank that has died (300 s) before the request fails.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120",
    }


LAUNCH = Launch(
    port=8000,
    rendezvous_port=29501,
    command=_command,
    environment=_environment,
    owned=frozenset(
        "model served-model-name tensor-parallel-size pipeline-parallel-size nnodes node-rank master-addr master-port "
        "headless host port distributed-executor-backend api-key".split()
    ),
    # brief table of purposes: what SGLang calls the same thing.
    equivalents={
        "mem-fraction-static": "gpu-memory-utilization",
        "context-length": "max-model-len",
        "max-running-requests": "max-num-seqs",
        "chunked-prefill-size": "max-num-batched-tokens",
        "max-prefill-tokens": "max-num-batched-tokens",
        "max-total-tokens": "kv-cache-memory-bytes",
        "disable-cuda-graph": "enforce-eager",
        "dist-timeout": "distributed-timeout-seconds",
        "tp-size": "tensor-parallel-size",
        "pp-size": "pipeline-parallel-size",
        "dp-size": "data-parallel-size",
        "dist-init-addr": "master-addr",
        "model-path": "model",
        "random-seed": "seed",
        "moe-runner-backend": "moe-backend",
        "disable-radix-cache": "no-enable-prefix-caching",
    },
    parser_source=DUMP
    + """
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
import vllm

dump(make_arg_parser(FlexibleArgumentParser()), vllm.__version__)
""",
    abbreviations=True,
    underscores=True,
    negations=("no-", "disable-", "enable-"),
    api_key_variable="VLLM_API_KEY",
)

ENGINE = Engine(name="vllm", title="vLLM", launch=LAUNCH)
