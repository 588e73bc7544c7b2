# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""One excerpt for each signature: found in a log, alone and in a traceback, and taken for what it is."""

from __future__ import annotations

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import SIGNATURES
from ansible_collections.sparkstack.inference.plugins.module_utils._suspects import from_text
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

SGLANG = "[2026-11-29 22:50:07 TP1] "
WORKER = "(Worker_TP1 pid=15748) ERROR 11-29 22:32:47 [multiproc_executor.py:1063] "

# What a traceback ends with: cause, kind, engine, the line.
RAISED = [
    ("oom", "cause", "sglang", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 139.80 GiB"),
    ("oom", "cause", "vllm", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("oom", "cause", "sglang", "torch.AcceleratorError: CUDA error: out of memory"),
    ("oom", "cause", "sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5"),
    ("oom", "cause", "sglang", "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5."),
    (
        "oom",
        "cause",
        "vllm",
        "ValueError: Free memory on device cuda:0 (14.13/119.64 GiB) on startup is less than desired GPU memory utilization (0.9, 107.68 GiB).",
    ),
    ("oom", "cause", "vllm", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    ("oom", "cause", "vllm", "ValueError: To serve at least one request with the model's max seq len (262144), 24.00 GiB KV cache is needed"),
    (
        "oom",
        "cause",
        "vllm",
        "ValueError: Available memory on node 0 (14.13/23.54 GiB) on kv cache allocation is less than requested memory for kv (100.0 GiB).",
    ),
    (
        "oom",
        "relay",
        "vllm",
        "RuntimeError: Worker failed with error 'Available memory on node 0 (1/2 GiB) on kv cache allocation is less than requested memory'",
    ),
    (
        "oom",
        "death",
        "sglang",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
    ),
    ("worker_died", "death", "sglang", "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)."),
    ("ray_oom_kill", "cause", "vllm", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("memory_unbalanced", "relay", "sglang", "RuntimeError: The memory capacity is unbalanced. pre_model_load_memory=1.44, local_gpu_memory=138.3"),
    ("bad_flag", "cause", "sglang", "torch.AcceleratorError: CUDA error: invalid device ordinal"),
    ("bad_flag", "cause", "vllm", "ValueError: nnodes > 1 can only be set when distributed executor backend is mp, uni or external_launcher."),
    (
        "unsupported_arch",
        "cause",
        "vllm",
        "ValueError: Transformers does not recognize this architecture. This could be because of an issue with the checkpoint",
    ),
    ("unsupported_arch", "cause", "sglang", "ValueError: Model architectures ['X'] are not supported for now. Supported architectures: dict_keys([])"),
    ("unsupported_arch", "cause", "sglang", "AttributeError: 'Qwen3_5MoeTextConfig' object has no attribute 'full_attention_interval'."),
    ("rendezvous_timeout", "peer", "vllm", "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined."),
    (
        "rendezvous_timeout",
        "peer",
        "vllm",
        "torch.distributed.DistNetworkError: The client socket has timed out after 30000ms while trying to connect to (192.168.200.11, 29501).",
    ),
    (
        "peer_exited",
        "peer",
        "sglang",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [10.77.1.2]:59012: Connection reset by peer",
    ),
    (
        "peer_exited",
        "peer",
        "vllm",
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.168.200.12]:16084. This is typically",
    ),
    ("peer_exited", "peer", "vllm", "RuntimeError: NCCL error: remote process exited or there was a network error"),
    ("peer_exited", "peer", "sglang", "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading."),
    ("gloo_wrong_iface", "cause", "vllm", "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: eth9"),
    (
        "gloo_wrong_iface",
        "relay",
        "vllm",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] timed out connecting: Connection refused, remote=[127.0.0.1]:34689",
    ),
    ("gloo_wrong_iface", "cause", "vllm", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"),
    ("nccl_error", "cause", "sglang", "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)"),
    ("net_unreachable", "cause", "vllm", "socket.gaierror: NameError: Name or service not known"),
    (
        "port_in_use",
        "cause",
        "sglang",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 20000, name: EADDRINUSE",
    ),
    ("port_in_use", "cause", "vllm", "OSError: [Errno 98] Address already in use"),
    ("missing_weights", "cause", "sglang", "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'."),
    ("missing_weights", "cause", "vllm", "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"),
    ("missing_weights", "cause", "vllm", "RuntimeError: Cannot find any model weights with `/models/x`"),
    ("missing_weights", "cause", "vllm", "OSError: /models/x does not appear to have a file named config.json."),
    ("missing_weights", "cause", "vllm", 'FileNotFoundError: No such file or directory: "/models/x/model-00002-of-00005.safetensors"'),
    ("permission", "cause", "vllm", "PermissionError: [Errno 13] Permission denied: '/models/x/config.json'"),
    ("unsupported_gpu_arch", "cause", "sglang", "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
    ("driver", "cause", "vllm", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"),
    ("watchdog", "peer", "vllm", "TimeoutError: RPC call to execute_model timed out."),
    ("bad_image", "cause", "vllm", "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found"),
    ("unknown", "unknown", "vllm", "KeyError: 'vllm_cpu'"),
    ("oom", "cause", "vllm", "RuntimeError: Triton Error [CUDA]: out of memory"),
    ("oom", "cause", "sglang", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("oom", "cause", "sglang", "OSError: [Errno 12] Cannot allocate memory"),
    ("oom", "cause", "sglang", "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=0"),
    ("oom", "cause", "sglang", "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max_mamba_cache_size=1"),
    ("oom", "cause", "sglang", "RuntimeError: SWA pool cap (4096 tokens, 1.00 GiB) leaves no room for the full KV pool within the available 0.90 GiB."),
    ("oom", "cause", "sglang", "ValueError: SWA pool (128 tokens) cannot hold even one request: the prefill admission floor is sliding_window_size (4096)"),
    ("oom", "cause", "vllm", "ValueError: To serve at least one request with the models's max seq len (262144), (24.00 GiB KV cache is needed"),
    ("oom", "cause", "vllm", "ValueError: Free memory on device cuda:0 (4.1/119.6 GiB) on startup is less than the engine's budget after excluding external"),
    ("oom", "cause", "vllm", "ValueError: Externally held weights on device cuda:0 (90/119.6 GiB) exceed the desired GPU memory utilization (0.5, 59.8 GiB)."),
    ("oom", "cause", "vllm", "AssertionError: Error in memory profiling. Initial free memory 90.1 GiB, current free memory 95.2 GiB."),
    ("oom", "cause", "vllm", "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token."),
    ("oom", "cause", "vllm", "ValueError: The worker already uses 3.1 GiB, more than the 2.0 GiB reserved for it on node 0, leaving none for the KV cache."),
    (
        "bad_flag",
        "cause",
        "sglang",
        "ValueError: Quantization method specified in the model config (fp8) does not match the quantization method specified in the",
    ),
    ("bad_flag", "cause", "vllm", "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (3)."),
    ("bad_flag", "cause", "sglang", "AssertionError: tp_size must be divisible by number of nodes"),
    ("bad_flag", "cause", "sglang", "RuntimeError: world_size (2) is not equal to tensor_model_parallel_size (4) x pipeline_model_parallel_size (1)"),
    (
        "bad_flag",
        "cause",
        "sglang",
        "ValueError: Warning: User-specified context_length (9) is greater than the derived (8). To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    ),
    ("bad_flag", "cause", "vllm", "ValueError: User-specified max_model_len (262144) is greater than the derived max_model_len (max_position_embeddings=32768"),
    ("bad_flag", "cause", "vllm", "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=80). Reasons: {}."),
    ("bad_flag", "cause", "vllm", "ValueError: Selected backend FLASHMLA is not valid for this configuration. Reason: ['compute capability not supported']"),
    ("bad_flag", "cause", "vllm", "ValueError: Unknown vLLM environment variable detected: VLLM_HOSTIP"),
    ("bad_flag", "cause", "vllm", "RuntimeError: Configuration mismatch detected for engine 1. All DP workers must have identical configurations"),
    ("bad_flag", "cause", "vllm", "RuntimeError: Remote engine 1 must use --headless unless in external or hybrid dp lb mode"),
    ("bad_flag", "unknown", "vllm", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig"),
    (
        "unsupported_arch",
        "cause",
        "vllm",
        "ValueError: Model architectures ['Qwen4ForCausalLM'] failed to be inspected. Please check the logs for more details.",
    ),
    ("unsupported_arch", "cause", "vllm", "ValueError: Model architecture X was supported in vLLM until v0.10.2, and is not supported anymore."),
    (
        "unsupported_arch",
        "cause",
        "sglang",
        "ValueError: Qwen4 has no SGlang implementation and the Transformers implementation is not compatible with SGLang.",
    ),
    ("unsupported_arch", "cause", "sglang", "ValueError: Cannot find model module. 'Qwen4' is not a registered model in the Transformers library"),
    ("unsupported_arch", "cause", "sglang", "RuntimeError: Couldn't determine number of kv heads"),
    (
        "unsupported_gpu_arch",
        "cause",
        "vllm",
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100.",
    ),
    (
        "missing_weights",
        "cause",
        "sglang",
        "RuntimeError: model.safetensors.index.json references 1 shard file(s) missing from /models/x (incomplete download?): []",
    ),
    ("missing_weights", "cause", "vllm", "FileNotFoundError: Weight files referenced in index but missing: ['model-00002-of-00005.safetensors']"),
    ("missing_weights", "cause", "vllm", "ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}"),
    (
        "missing_weights",
        "cause",
        "vllm",
        "OSError: /data/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    ),
    (
        "missing_weights",
        "cause",
        "vllm",
        "ValueError: Could not detect config format for no config file found. With config_format 'auto', ensure your model has",
    ),
    ("missing_weights", "cause", "vllm", "RuntimeError: Cannot find any safetensors model weights with `/models/x`"),
    ("permission", "cause", "vllm", "huggingface_hub.errors.GatedRepoError: 401 Client Error."),
    ("bad_image", "cause", "sglang", "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
    ("bad_image", "cause", "sglang", "Exception: flashinfer_python is installed with version 0.2.3, which is less than the minimum required version 0.4.0."),
    ("bad_image", "cause", "vllm", "ValueError: Failed to import Ray: No module.Please install Ray with `pip install ray`."),
    ("driver", "cause", "vllm", "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`"),
    ("driver", "cause", "sglang", "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin is available."),
    ("driver", "cause", "vllm", "ValueError: Current node has no GPU available. current_node_resource={'CPU': 20.0}."),
    ("driver", "cause", "vllm", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
    ("port_in_use", "cause", "sglang", "ValueError: dist-init port at 20000 is not available in 120 seconds. lsof: python3"),
    ("port_in_use", "cause", "sglang", "OSError: Could not bind port 30000 on any configured address family"),
    ("port_in_use", "cause", "vllm", "RuntimeError: Could not find open port after 10 attempts starting from port 29501"),
    ("net_unreachable", "cause", "sglang", "ValueError: Cannot resolve host spark9: [Errno -2]"),
    ("watchdog", "cause", "vllm", "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight loading"),
    ("rendezvous_timeout", "peer", "vllm", "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds."),
    ("rendezvous_timeout", "peer", "sglang", "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0/rank_1"),
    ("rendezvous_timeout", "peer", "sglang", "RuntimeError: Socket Timeout"),
    (
        "rendezvous_timeout",
        "peer",
        "sglang",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1",
    ),
    ("peer_exited", "peer", "sglang", "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"),
    ("nccl_timeout", "peer", "vllm", "RuntimeError: [gloo/transport/tcp/pair.cc:525] Application timeout caused pair closure"),
    ("nccl_timeout", "peer", "vllm", "RuntimeError: Barrier timed out after 300 seconds"),
    ("capture_failed", "cause", "sglang", "Exception: Capture CUDA graph failed: CUDA error: an illegal memory access was encountered"),
    ("capture_failed", "cause", "sglang", "Exception: Capture prefill CUDA graph failed: CUDA error: an illegal memory access was encountered"),
    ("unknown", "unknown", "sglang", "OSError: [Errno 28] No space left on device: '/cache/x.so'"),
    ("oom", "cause", "vllm", "RuntimeError: CUDA driver error: out of memory"),
    ("oom", "cause", "vllm", "cuda.core._utils.CUDAError: CUDA_ERROR_OUT_OF_MEMORY: The API call failed because it was unable to allocate enough memory"),
    ("oom", "cause", "vllm", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ("oom", "cause", "sglang", 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, please report'),
    ("oom", "cause", "vllm", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 2: out of memory"),
    ("oom", "cause", "vllm", "RuntimeError: unable to mmap 4976698672 bytes from file </m/model-00001-of-00004.safetensors>: Cannot allocate memory (12)"),
    ("oom", "cause", "sglang", "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("bad_flag", "cause", "vllm", "ValueError: Weight output_partition_size = 576 is not divisible by weight quantization block_n = 128."),
    ("bad_flag", "cause", "vllm", "ValueError: The input size is not aligned .. This can be caused by too large tensor parallel size."),
    ("bad_flag", "cause", "vllm", "ValueError: Unknown quantization method: mxfp4. Must be one of ['awq', 'fp8']."),
    ("bad_flag", "cause", "sglang", "ValueError: Invalid quantization method: foo. Available methods: ['awq', 'fp8']"),
    ("bad_flag", "cause", "vllm", 'KeyError: "invalid tool call parser: foo (chose from { hermes,llama3_json })"'),
    ("bad_flag", "cause", "vllm", "KeyError: \"reasoning parser 'foo' not found in ReasoningParserManager\""),
    ("bad_flag", "cause", "vllm", "ValueError: The supplied chat template (/x.jinja) looks like a file path, but it failed to be opened. Reason: x"),
    ("bad_flag", "cause", "sglang", "RuntimeError: Chat template /x/tpl.jinja is not a built-in template name or a valid chat template file path."),
    ("bad_flag", "cause", "vllm", "ValueError: Loading /m requires you to execute the configuration file in that repo on your local machine."),
    ("bad_flag", "cause", "sglang", "ValueError: The repository /m contains custom code which must be executed to correctly load the model."),
    ("bad_flag", "cause", "vllm", "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['a', 'b'] and 1 unique IP addresses"),
    ("bad_image", "cause", "sglang", "importlib.metadata.PackageNotFoundError: No package metadata was found for sgl-kernel"),
    ("bad_image", "cause", "vllm", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    ("bad_image", "cause", "vllm", "ImportError: /usr/lib/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
    ("bad_image", "cause", "sglang", "ImportError: cannot import name 'AutoVideoProcessor' from 'transformers' (/usr/lib/transformers/__init__.py)"),
    ("bad_image", "cause", "vllm", "AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'"),
    ("bad_image", "cause", "vllm", "AssertionError: Torch not compiled with CUDA enabled"),
    ("bad_image", "cause", "vllm", "RuntimeError: Version mismatch: The cluster was started with:"),
    ("driver", "cause", "vllm", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"),
    ("driver", "cause", "vllm", "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver"),
    ("driver", "cause", "sglang", "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu."),
    ("driver", "cause", "sglang", "torch.AcceleratorError: CUDA error: initialization error"),
    ("driver", "cause", "sglang", "torch.AcceleratorError: CUDA error: unknown error"),
    ("driver", "cause", "vllm", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver"),
    ("driver", "cause", "vllm", "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."),
    ("driver", "cause", "vllm", "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("unsupported_gpu_arch", "cause", "vllm", "torch.AcceleratorError: CUDA error: device kernel image is invalid"),
    ("unsupported_gpu_arch", "cause", "vllm", "NotImplementedError: No compiled x for a compute capability less than CUDA device capability: 121"),
    ("unsupported_gpu_arch", "cause", "vllm", "RuntimeError: No supported CUDA architectures found for major versions [10]."),
    ("unsupported_gpu_arch", "cause", "vllm", "RuntimeError: FlashInfer backend is not available for device capability 12.1"),
    (
        "unsupported_gpu_arch",
        "cause",
        "vllm",
        "RuntimeError: Failed to initialize cutlass TMA WS grouped gemm. Error: Error Internal (/x/gemm_grouped/120/x.cu:60)",
    ),
    ("unsupported_gpu_arch", "cause", "vllm", "RuntimeError: Assertion error (csrc/apis/attention.hpp:223): Unsupported architecture"),
    ("unsupported_gpu_arch", "cause", "sglang", "RuntimeError: nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    ("unsupported_gpu_arch", "cause", "sglang", "OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376."),
    ("unsupported_gpu_arch", "cause", "sglang", "pynvml.NVMLError_NotSupported: Not Supported"),
    ("unsupported_arch", "cause", "vllm", "ValueError: There is no module or parameter named 'model.layers.0.mlp.gate' in Qwen3ForCausalLM"),
    ("unsupported_arch", "cause", "vllm", "Exception: data did not match any variant of untagged enum ModelWrapper at line 757479 column 3"),
    ("missing_weights", "cause", "vllm", "safetensors_rust.SafetensorError: device error: Input/output error (os error 5)"),
    ("missing_weights", "cause", "vllm", "_pickle.UnpicklingError: invalid load key, 'v'."),
    ("missing_weights", "cause", "sglang", "EOFError: Ran out of input"),
    ("missing_weights", "cause", "vllm", "OSError: Unable to load weights from pytorch checkpoint file for '/m/pytorch_model.bin'"),
    ("missing_weights", "cause", "vllm", "OSError: Consistency check failed: file should be of size 4976698672 but has size 123 (model-00001.safetensors)."),
    ("missing_weights", "cause", "vllm", "OSError: It looks like the config file at '/m/config.json' is not a valid JSON file."),
    ("missing_weights", "cause", "sglang", "OSError: [Errno 116] Stale file handle: '/m/model-00001-of-00002.safetensors'"),
    ("missing_weights", "cause", "vllm", "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory /m."),
    ("missing_weights", "cause", "vllm", "OSError: Incorrect path_or_model_id: '/m'. Please provide either the path to a local folder or the repo_id"),
    (
        "missing_weights",
        "cause",
        "vllm",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/x: offline mode is enabled.",
    ),
    (
        "missing_weights",
        "cause",
        "vllm",
        "ConnectionError: HTTPSConnectionPool(host='huggingface.co'): Max retries exceeded ([Errno -3] Temporary failure in name resolution)",
    ),
    ("permission", "cause", "vllm", "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/x"),
    ("permission", "cause", "vllm", "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/x"),
    ("permission", "cause", "vllm", "OSError: PermissionError at /root/.cache/huggingface when downloading x. Check cache directory permissions."),
    ("permission", "cause", "vllm", "OSError: [Errno 30] Read-only file system: '/models/x/.cache'"),
    ("port_in_use", "cause", "vllm", "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5557')"),
    ("port_in_use", "cause", "vllm", "ConnectionError: Ray is trying to start at 10.0.0.1:6379, but is already running at 10.0.0.1:6379."),
    ("port_in_use", "cause", "vllm", "ValueError: Ray component metrics_export is trying to use a port number 8080 that is used by other components."),
    ("port_in_use", "cause", "vllm", "AssertionError: Session name session_a does not match persisted value b'session_b'. Perhaps there was an error"),
    ("net_unreachable", "cause", "vllm", "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.9:5557')"),
    ("net_unreachable", "cause", "vllm", "zmq.error.ZMQError: No such device (addr='tcp://10.0.0.9:5557')"),
    ("net_unreachable", "cause", "vllm", "torch.distributed.DistNetworkError: .. (errno: 97 - Address family not supported by protocol)."),
    ("net_unreachable", "cause", "vllm", "DistNetworkError: The server socket has failed to listen on any .. (errno: 99 - Cannot assign requested address)."),
    ("missing_weights", "cause", "vllm", "RuntimeError: Data processing error: CAS service error : Reqwest Error: HTTP status client error"),
    ("bad_flag", "cause", "vllm", "NotImplementedError: Pipeline parallelism is not supported for this model."),
    ("bad_flag", "cause", "vllm", "AssertionError: local_world_size (2) must be less than or equal to the number of visible devices (1)."),
    ("bad_flag", "cause", "vllm", "AssertionError: please set tensor_parallel_size (2) to less than max local gpu count (1)"),
    ("bad_flag", "cause", "vllm", "ValueError: World size (2) is larger than the number of available GPUs (1) in this node."),
    ("unsupported_arch", "cause", "vllm", "AssertionError: Tried to load weights of size torch.Size([2, 3])to a parameter of size torch.Size([2, 4])"),
    ("peer_exited", "peer", "sglang", "RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for rank 0."),
    ("custom_allreduce_ipc", "cause", "sglang", "RuntimeError: CUDART error: invalid resource handle"),
    ("oom", "cause", "vllm", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"),
    ("oom", "cause", "vllm", "c++: fatal error: Killed signal terminated program cc1plus"),
    ("bad_image", "cause", "vllm", "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found"),
    ("bad_image", "cause", "vllm", "tensor_fill.h:60:10: fatal error: curand_kernel.h: No such file or directory"),
    ("peer_exited", "peer", "sglang", "RuntimeError: [/x/gloo/transport/tcp/pair.cc:538] Read error [10.0.0.1]:5000: Connection timed out"),
    ("unknown", "unknown", "sglang", "OSError: [Errno 24] Too many open files"),
    ("nccl_error", "cause", "vllm", "torch.distributed.DistBackendError: NCCL error in: /x/ProcessGroupNCCL.cpp:3690, unhandled system error"),
    ("peer_exited", "peer", "sglang", "DistBackendError: NCCL error in: /x.cpp:2363, remote process exited or there was a network error"),
    (
        "rendezvous_timeout",
        "peer",
        "sglang",
        "DistBackendError: [0] is .. retrieving ncclUniqueId from [1] .., but store->get('0') got error: wait timeout after 600000ms",
    ),
    ("peer_exited", "peer", "vllm", "ray.exceptions.ActorDiedError: The actor died because its node has died. Node Id: 82"),
    ("peer_exited", "peer", "vllm", "ray.exceptions.ActorUnavailableError: The actor 5066c201 is unavailable: The actor is temporarily unavailable"),
    ("worker_died", "death", "vllm", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
    ("rendezvous_timeout", "cause", "vllm", "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to"),
    ("rendezvous_timeout", "cause", "vllm", "RuntimeError: No node info found matching attributes: {'node_ip_address': '10.0.0.1'}"),
    ("rendezvous_timeout", "peer", "vllm", "RuntimeError: Failed to connect to GCS."),
    (
        "rendezvous_timeout",
        "cause",
        "vllm",
        "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Note: RAY_AUTH_MODE is 'disabled'",
    ),
    (
        "unknown",
        "unknown",
        "vllm",
        "Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup or the GCS has become overloaded.",
    ),
]
# What counts wherever it stands.
PRINTED = [
    ("bad_flag", "cause", "sglang", "sglang serve: error: unrecognized arguments: --language-model-only"),
    ("bad_flag", "cause", "vllm", "vllm serve: error: argument --dtype: invalid choice: 'bf17'"),
    ("bad_flag", "cause", "sglang", "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode"),
    ("wrong_image_arch", "cause", "vllm", "exec /usr/bin/python3: exec format error"),
    ("wrong_image_arch", "cause", "sglang", "[FATAL tini (6)] exec python3 failed: Exec format error"),
    (
        "ib_error",
        "cause",
        "sglang",
        "spark1:1:2 [0] transport/net_ib.cc:90 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f1:1",
    ),
    ("nccl_error", "soft", "sglang", "spark1:1:2 [0] NCCL WARN something else"),
    ("oom", "cause", "sglang", "spark1:1:2 [0] transport/net.cc:5 NCCL WARN Cuda failure 2 'out of memory'"),
    ("oom", "cause", "vllm", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("unsupported_gpu_arch", "cause", "vllm", "nvcc fatal   : Unsupported gpu architecture 'compute_121a'"),
    ("worker_died", "death", "vllm", "Fatal Python error: Segmentation fault"),
    (
        "worker_died",
        "death",
        "vllm",
        "(APIServer pid=1) ERROR 11-29 22:32:53 [core_client.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
    ),
    ("watchdog", "cause", "sglang", "[2025-03-01 10:00:00 TP0] Watchdog timeout (self.watchdog_timeout=300)"),
    ("watchdog", "cause", "sglang", "[2026-11-29 10:00:00] Detokenizer watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
    (
        "nccl_timeout",
        "peer",
        "vllm",
        "[rank0]:[E1129 22:22:22.222222222 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
    ),
    (
        "net_unreachable",
        "soft",
        "sglang",
        "[W1129 22:53:21.012162461 socket.cpp:764] [c10d] The client socket has failed to connect to 0.0.0.0:7317 (errno: 113 - No route to host).",
    ),
    (
        "rendezvous_timeout",
        "soft",
        "vllm",
        "[E1129 22:51:43.904256021 socket.cpp:1028] [c10d] The client socket has timed out after 30000ms while trying to connect to (192.168.200.11, 29501).",
    ),
    (
        "rendezvous_timeout",
        "soft",
        "vllm",
        "(EngineCore pid=1) INFO 11-29 22:42:23 [ray_utils.py:233] Waiting for creating a placement group of specs for 10 seconds. specs=[{}]",
    ),
    ("rendezvous_timeout", "soft", "vllm", "Ray launcher: for 20 s there is no head of Ray at 192.168.200.11:29501 ([Errno 111] Connection refused)"),
    ("rendezvous_timeout", "soft", "vllm", "Ray launcher: for 10 s no Ray has come from 192.168.200.12, 192.168.200.13"),
    ("rendezvous_timeout", "peer", "vllm", "Ray launcher: gave up after 1801 s: there is no head of Ray at 192.168.200.11:29501 (timed out)"),
    ("rendezvous_timeout", "peer", "vllm", "Ray launcher: gave up after 1800 s: no Ray has come from 192.168.200.12"),
    (
        "port_in_use",
        "cause",
        "sglang",
        "[2026-11-29 22:44:03] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
    ),
    ("custom_allreduce_ipc", "cause", "vllm", "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:368 'invalid resource handle'"),
    ("watchdog", "cause", "sglang", SGLANG + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"),
    (
        "worker_died",
        "death",
        "vllm",
        "(MainProcess pid=1) ERROR 11-29 22:32:53 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.",
    ),
    ("worker_died", "death", "vllm", "(EngineCore pid=1) ERROR 11-29 22:32:53 [x.py:1] RayWorkerProc rank=[1] died unexpectedly, shutting down executor."),
    ("worker_died", "death", "sglang", "[2026-11-29 22:44:21] Scheduler or DataParallelController 6843 terminated with -9"),
    ("peer_exited", "peer", "sglang", "[2026-11-29 22:44:21] Scheduler or DataParallelController 6843 terminated with 0"),
    ("worker_died", "death", "sglang", "[2026-11-29 22:44:21] Subprocess scheduler_0 (pid=12) crashed with exit code -6. Triggering SIGQUIT for cleanup..."),
    ("bad_image", "cause", "sglang", "/usr/bin/python3: No module named sglang.launch_server"),
    ("wrong_image_arch", "cause", "vllm", "docker: no matching manifest for linux/arm64/v8 in the manifest list entries."),
    ("wrong_image_arch", "cause", "vllm", "qemu-x86_64: Could not open '/lib64/ld-linux-x86-64.so.2': No such file or directory"),
    ("driver", "cause", "vllm", "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all: unknown"),
    ("nccl_error", "soft", "vllm", "s1:1:2 [0] NCCL WARN socketPollConnect: connect to 10.0.0.4<56849> returned No route to host, retrying (1/34)"),
    ("bad_image", "cause", "vllm", "bash: line 1: vllm: command not found"),
    ("bad_image", "cause", "vllm", "/bin/sh: 1: vllm: not found"),
    ("bad_flag", "cause", "vllm", "spark1:1:2 [0] init.cc:1095 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device f0000"),
    ("ib_error", "cause", "vllm", "spark1:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"),
    ("ib_error", "cause", "vllm", "spark1:1:2 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_qp failed with error Invalid argument"),
    ("net_unreachable", "cause", "sglang", "node5:240:240 [6] NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host)"),
    ("worker_died", "death", "vllm", "(RayWorker pid=3554640) Fatal Python error: Bus error"),
    ("worker_died", "death", "vllm", "(raylet) A worker died or was killed while executing a task .. Worker IP address: 10.0.0.2 Worker port: 10002"),
    ("rendezvous_timeout", "soft", "vllm", "[2025-06-13 01:49:41,730 E 1 1] x.h:179: Failed to connect to GCS at address 10.0.0.1:6379 within 5 seconds."),
    ("nccl_timeout", "peer", "vllm", "[rank0]:[F1129 22:22:22.2 x.cpp:1169] [PG 2 Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds"),
    ("driver", "cause", "vllm", "[rank0]:[E424 22:22:22.2 x.cpp:2] Process group watchdog thread terminated with exception: CUDA error: unknown error"),
    ("unknown", "unknown", "vllm", "[rank0]:[E424 22:22:22.2 x.cpp:2] watchdog thread terminated with exception: CUDA error: an illegal memory access"),
    ("oom", "death", "sglang", "[2025-05-01 10:00:00] Exit code: -9"),
    ("worker_died", "death", "sglang", "[2025-05-01 10:00:00] Exit code: 1"),
]
# What healthy ranks print too, and what says nothing by itself.
HARMLESS = [
    ("vllm", "(EngineCore pid=1) INFO 11-29 22:32:53 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds."),
    ("vllm", "(APIServer pid=1) WARNING 11-29 22:15:44 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many open files`."),
    ("sglang", "[rank0]:[W1129 22:44:23.543811971 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit"),
    ("sglang", SGLANG + "Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'"),
    ("vllm", "[W1129 22:32:30.316185062 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"),
    (
        "vllm",
        "(EngineCore pid=1) ERROR 11-29 22:32:53 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: 0), shutting down executor.",
    ),
    ("sglang", "[2026-11-29 10:00:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=True)"),
    ("sglang", "[2026-11-29 22:44:21] Received sigquit from a child process. It usually means the child failed."),
    ("vllm", "bash: line 1: nvidia-smi: command not found"),
    ("sglang", "/usr/bin/python3: No module named pip"),
    ("sglang", "[2025-05-01 10:00:00] Exit code: 0"),
    ("sglang", "[2025-05-01 10:00:00] Rank 0 scheduler is dead. Please check if there are relevant logs."),
    ("sglang", "spark1:1:2 [0] NCCL INFO Call to ibv_set_ece failed with error Operation not supported errno 95"),
]


def candidates(engine: str, text: str) -> list[dict]:
    timeline = Timeline(engine, 2026)
    timeline.feed(text)
    return timeline.reading()["candidates"]


@pytest.mark.parametrize(("cause", "kind", "engine", "raised"), RAISED)
def test_raised(cause: str, kind: str, engine: str, raised: str) -> None:
    before = (SGLANG + "Scheduler hit an exception: ", "") if engine == "sglang" else (WORKER, WORKER)
    header = "Traceback (most recent call last):"
    herald = "" if engine == "sglang" else WORKER + "WorkerProc failed to start.\n"
    text = f'{herald}{before[0]}{header}\n{before[1]}  File "x.py", line 1, in run\n{before[1]}    call()\n{before[1]}{raised}\n\n'
    (found,) = candidates(engine, text)
    assert (found["cause"], found["kind"], found["fatal"]) == (cause, kind, True)
    assert found["lines"][-1].endswith(raised)
    assert any('File "x.py"' in line for line in found["lines"])


@pytest.mark.parametrize(("cause", "kind", "engine", "printed"), PRINTED)
def test_printed(cause: str, kind: str, engine: str, printed: str) -> None:
    (found,) = candidates(engine, f"first line\n{printed}\nlast line\n")
    assert (found["cause"], found["kind"]) == (cause, kind)
    assert found["lines"] == [printed]
    assert found["fatal"] is (kind != "soft")


@pytest.mark.parametrize(("engine", "printed"), HARMLESS)
def test_harmless(engine: str, printed: str) -> None:
    assert candidates(engine, f"first line\n{printed}\n") == []


def test_a_rank_that_ray_names() -> None:
    (found,) = candidates("vllm", [p for *_x, p in PRINTED if "RayWorkerProc rank" in p][0] + "\n")
    assert found["values"] == {"rank": 1}


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("oom", "Out of memory: Killed process 6843 (sglang::schedul) total-vm:1kB"),
        ("oom", "Memory cgroup out of memory: Killed process 12 (VLLM::Worker_TP)"),
        ("wrong_image_arch", "exec /usr/bin/vllm: exec format error"),
        ("driver", 'could not select device driver "" with capabilities: [[gpu]]'),
        ("bad_image", 'exec: "vllm": executable file not found in $PATH: unknown'),
    ],
)
def test_word_from_outside(cause: str, text: str) -> None:
    found = from_text(text)
    assert found is not None and found["cause"] == cause


def test_every_cause_has_its_words() -> None:
    signatures = [s for engine in ENGINES.values() for s in engine.log.signatures] + list(SIGNATURES)
    assert {s.cause for s in signatures if s.kind not in ("noise", "wrapper", "stop")} <= set(CAUSES)
    for cause, words in CAUSES.items():
        assert words.remedy.endswith("."), cause
    for signature in signatures:
        assert not signature.remedy or signature.remedy.endswith("."), signature
        assert signature.remedy.format(node="spark2", peer="spark1") == signature.remedy.replace("{node}", "spark2").replace("{peer}", "spark1")
