# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What Python, torch, NCCL, Gloo, Ray and Docker print under every engine.

To add a signature: one row here (or in the engine's own file) and one real excerpt in tests/unit/.../test_signatures.py.
The first row that matches a line decides, so the narrower row stands first.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Fact as F
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Signature as S

PREFIXES: t.Tuple[str, ...] = (
    # Ray's own logger: "2026-11-29 22:42:23,774	ERROR worker.py:439 -- ".
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\s+[A-Z]+ \S+ -- ",
    # torch's C++ logger: "[rank1]:[W1129 22:51:50.928128280 TCPStore.cpp:125] ", in April "[W424 19:55:34.987081798 ..".
    r"(?:\[rank\d+\]:)?\[[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d+ \S+:\d+\] ",
    # torch's Python logger: "[rank0]:E1129 22:51:50.928000 1234 torch/_inductor/select_algorithm.py:2718] [0/0] ".
    r"(?:\[rank\d+\]:)?[IWEVF]\d{3,4} \d\d:\d\d:\d\d\.\d+ \d+ \S+:\d+\] (?:\[[\w/.-]*\] )*",
    # uvicorn: "INFO:     Application startup complete.".
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,}",
)

# These come before an engine has shown its first phase, or never.
EARLY = frozenset(("wrong_image_arch", "bad_image", "driver", "bad_flag", "permission"))
# These can still befall a rank that serves.
LATE = frozenset(["oom", "ray_oom_kill", "ib_error", "nccl_error", "nccl_timeout", "peer_exited", "worker_died", "watchdog", "net_unreachable", "noise"])

_FLAG = "Correct or remove that option: it belongs to another engine or to another version of this one."
_GLOO = (
    "Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on {node} to the interface that carries its fabric address, "
    "and let its host name resolve to that address and not to 127.x."
)
_NCCL_INTERFACE = "Set NCCL_SOCKET_IFNAME on {node} to the interface that carries its fabric address: the container has none of the name that it was given."
_DEVICES = "Give every node the same parallel sizes, and no more ranks to a node than it has GPUs."
_GATED = "Copy the model to a folder of {node}, or give its token for the hub: this one is not open to everybody."
_DISK = "Free space on {node}: of its disk, of the engine's cache folder or of /dev/shm, whichever the evidence names."
_SHARD = "Copy the model to {node} again and compare sizes and checksums with the other nodes: a file is cut or damaged."
_AUTH = "Give {node} a token for the hub that may read this model, or copy the model to a folder of {node}."
_TRUST = "Read the model's own code, and if you trust it, say so on every node: trust-remote-code."
_FILES = "Raise the number of files that {node}'s container may hold open (ulimits: nofile)."
_SHM = "Give {node}'s container more shared memory (ipc: host, or a larger shm_size); if its disk is a network's, look whether files change under it."
_SMALL_GPU = "Take an image whose kernels fit the GPU of {node}, or another attention, MoE or quantization backend: this one was tuned for a larger GPU."
_JOBS = "Let {node} compile fewer kernels at a time (MAX_JOBS, for FlashInfer too): each of the compilers takes some GiB."
_RAY = "Start Ray on {node} with the head's fabric address before the engine, and look whether the head's Ray answers on that address and port."
_SAME = "Take the same image on every node: the versions of Python and of Ray must be the same."
_ALONE = "Give every node an address of its own: set VLLM_HOST_IP on each to its fabric address."
_KV = (
    "Free memory on {node} or leave the engine more of it for the KV cache (its memory fraction), lower the context "
    "length, or spread the model over more nodes."
)

# fmt: off
SIGNATURES: t.Tuple[S, ...] = (
    # Noise: printed by healthy ranks, or after the end.
    S("noise", "KeyboardInterrupt", "stop"),
    S("noise", "Exception ignored in", "noise", line=True),
    S("noise", "destroy_process_group() was not called", "noise", line=True),
    S("noise", "resource_tracker", "noise", line=True),
    S("noise", "Too many open files`", "noise", line=True),
    S("noise", "The hostname of the client socket cannot be retrieved", "noise", line=True),
    S("noise", "Failed to check the \"should dump\" flag on TCPStore", "noise", line=True),
    S("noise", "ActorHandleNotFoundError", "noise"),
    S("noise", "ras/client_support.cc", "noise", line=True),
    S("noise", "RayTaskError(", "wrapper"),
    S("noise", "received SIGTERM", "stop", line="SIGTERM"),
    # Memory.
    S("ray_oom_kill", "ray.exceptions.OutOfMemoryError"),
    S("ray_oom_kill", "killed due to the node running low on memory", line="killed due to", pattern=r"killed|IP: (?P<address>[\d.a-fA-F:]+)"),
    S("ray_oom_kill", "killed due to memory pressure (OOM)", line="killed due to", pattern=r"killed|IP: (?P<address>[\d.a-fA-F:]+)"),
    S("oom", "OutOfMemoryError: CUDA out of memory", pattern=r"CUDA|of which (?P<free>[\d.]+ \wiB) is free"),
    S("oom", "CUDA error: out of memory"),
    S("oom", "cudaErrorMemoryAllocation"),
    S("oom", "CUDA out of memory"),
    S("oom", "[CUDA]: out of memory"),
    S("oom", "CUDA driver error: out of memory"),
    S("oom", "CUDA_ERROR_OUT_OF_MEMORY"),
    S("oom", "CUDNN_STATUS_ALLOC_FAILED"),
    # cudaGetDeviceCount(): "Error 2: out of memory".
    S("oom", "Error 2: out of memory"),
    # On unified memory the driver refuses an allocation, and torch then asks NVML, which knows no memory there.
    S("oom", "NVML_SUCCESS == r INTERNAL ASSERT FAILED"),
    S("oom", "CUBLAS_STATUS_ALLOC_FAILED"),
    S("oom", "Cuda failure", line="NCCL WARN", pattern=r"out of memory"),
    S("oom", "std::bad_alloc", line=True),
    # The kernel's, not the container's: looked for in kernel messages only.
    S("oom", "NV_ERR_NO_MEMORY"),
    S("oom", "ut of memory: Killed process"),
    S("oom", "oom-kill:constraint="),
    S("oom", "NVML_ERROR_INSUFFICIENT_RESOURCES"),
    S("oom", "DefaultCPUAllocator: can't allocate memory"),
    S("oom", "MemoryError"),
    # Compilers of kernels, in what ninja and torch quote of them.
    S("oom", "FAILED: [code=137]", remedy=_JOBS),
    S("oom", "died due to signal 9", remedy=_JOBS),
    S("oom", "Killed signal terminated program", remedy=_JOBS),
    S("bad_image", "nvcc: not found"),
    S("bad_image", "fatal error:", pattern=r"fatal error: \S+\.h(?:pp)?: No such file"),
    # "[Errno 12] Cannot allocate memory", "unable to mmap 4976698672 bytes from file <..>: Cannot allocate memory (12)".
    S("oom", "Cannot allocate memory"),
    # The command line and the image.
    S("bad_flag", "error: unrecognized arguments:", line=True, remedy=_FLAG),
    S("bad_flag", "error: argument ", line=True, pattern=r"error: argument .*: ", remedy=_FLAG),
    S("bad_flag", "error: ambiguous option", line=True, remedy=_FLAG),
    S("bad_flag", "error: the following arguments are required", line=True),
    S("bad_flag", "CUDA error: invalid device ordinal", remedy=_DEVICES),
    S("bad_flag", "must be less than or equal to the number of visible devices", remedy=_DEVICES),
    S("bad_flag", "max local gpu count", remedy=_DEVICES),
    S("bad_flag", "is larger than the number of available GPUs", remedy=_DEVICES),
    S("bad_flag", "does not match the quantization method"),
    S("bad_flag", "divisible by", pattern=r"(?:must be|is not|not) (?:evenly )?divisible by"),
    S("bad_flag", "This can be caused by too large tensor parallel size"),
    S("bad_flag", "nknown quantization method"),
    S("bad_flag", "Invalid quantization method"),
    S("bad_flag", "parser", pattern=r"invalid (?:tool call|reasoning) parser|parser '[^']*' not found|nsupported (?:tool|reasoning)[ _-](?:call )?parser"),
    S("bad_flag", "looks like a file path, but it failed to be opened"),
    S("bad_flag", "is not a built-in template name or a valid chat template file path"),
    S("bad_flag", "Duplicate GPU detected", line="NCCL WARN", remedy=_DEVICES),
    S("bad_flag", "node should have a unique IP address", remedy=_ALONE),
    S("wrong_image_arch", "exec format error", line="xec format error"),
    # docker-init: "[FATAL tini (6)] exec python3 failed: Exec format error".
    S("wrong_image_arch", "Exec format error", line="xec format error"),
    S("wrong_image_arch", "does not match the detected host platform", "soft", line=True),
    S("wrong_image_arch", "no matching manifest for linux/", line=True),
    S("wrong_image_arch", "ld-linux-x86-64.so.2", line=True, pattern=r"Could not open"),
    S("driver", "unresolvable CDI devices", line=True),
    S("bad_image", "executable file not found in $PATH", line=True),
    # Python's own word on "python3 -m sglang.launch_server", without a traceback.
    S("bad_image", "No module named", line=": No module named", pattern=r"(?:^|[/ ])python[\d.]*: No module named '?(?:vllm|sglang)\b"),
    S("bad_image", "No module named", pattern=r"ModuleNotFoundError"),
    S("bad_image", "PackageNotFoundError"),
    # bash: "line 1: vllm: command not found", sh: "1: vllm: not found".
    S("bad_image", "not found", line=": not found", pattern=r"sh: \d+: (?:vllm|sglang|python3?): not found"),
    S("bad_image", "command not found", line=True, pattern=r": (?:vllm|sglang|python3?): command not found"),
    S("driver", "libcuda.so.1: cannot open shared object file"),
    S("bad_image", "cannot open shared object file"),
    S("bad_image", "undefined symbol:", pattern=r"ImportError|OSError"),
    S("bad_image", "cannot import name", pattern=r"ImportError"),
    S("bad_image", "_OpNamespace", pattern=r"has no attribute"),
    S("bad_image", "Torch not compiled with CUDA enabled"),
    S("bad_image", "Version mismatch: The cluster was started with", remedy=_SAME),
    S("bad_image", "error while loading shared libraries", line="error while"),
    S("bad_image", "CUDA_HOME environment variable is not set"),
    S("bad_image", "Ninja is required to load C++ extensions"),
    S("bad_image", "Failed to import Ray"),
    S("bad_image", "Using Ray backend requires installation of ray"),
    S("bad_image", "Failed to find C compiler"),
    S("unsupported_gpu_arch", "no kernel image is available for execution on the device"),
    S("unsupported_gpu_arch", "Could not load any common_ops library"),
    S("unsupported_gpu_arch", "Unsupported gpu arch"),
    S("unsupported_gpu_arch", "PTXAS error"),
    S("unsupported_gpu_arch", "device kernel image is invalid"),
    S("unsupported_gpu_arch", "for a compute capability less than CUDA device capability"),
    S("unsupported_gpu_arch", "No supported CUDA architectures found for major versions"),
    S("unsupported_gpu_arch", "not available for device capability"),
    S("unsupported_gpu_arch", "Failed to initialize cutlass TMA WS grouped gemm"),
    S("unsupported_gpu_arch", "Unsupported architecture", pattern=r"Assertion error \("),
    S("unsupported_gpu_arch", "invalid value for --gpu-architecture"),
    S("unsupported_gpu_arch", "out of resource: shared memory", remedy=_SMALL_GPU),
    # A GB10 has no GPU memory of its own to tell of.
    S("unsupported_gpu_arch", "NVMLError_NotSupported"),
    S("unsupported_gpu_arch", "ptxas fatal", line=True),
    S("unsupported_gpu_arch", "nvcc fatal", line=True, pattern=r"Unsupported gpu arch"),
    S("unsupported_gpu_arch", "is not supported for the current GPU. Minimum capability"),
    S("unsupported_gpu_arch", "Bfloat16 is only supported on GPUs with compute capability"),
    S("driver", "CUDA driver version is insufficient"),
    S("driver", "forward compatibility was attempted on non supported HW"),
    S("driver", "nvidia-container-cli:", line=True),
    S("driver", "could not select device driver", line=True),
    S("driver", "CUDA unknown error"),
    S("driver", "CUDA error: unknown error"),
    S("driver", "The NVIDIA driver on your system is too old"),
    S("driver", "CUDA driver initialization failed"),
    S("driver", "CUDA error: initialization error"),
    # It stands before the number: "Error 803: system has unsupported display driver / cuda driver combination".
    S("driver", "Unexpected error from cudaGetDeviceCount()"),
    S("driver", "the provided PTX was compiled with an unsupported toolchain"),
    S("driver", "CUDA-capable device(s) is/are busy or unavailable"),
    S("driver", "No CUDA GPUs are available"),
    S("driver", "Found no NVIDIA driver on your system"),
    S("driver", "CUDA error: no CUDA-capable device is detected"),
    S("driver", "CUDA error: all CUDA-capable devices are busy or unavailable"),
    S("driver", "CUDA error: uncorrectable ECC error"),
    S("driver", "CUDA error: system not yet initialized"),
    S("driver", "NVMLError_LibraryNotFound"),
    S("driver", "NVMLError_DriverNotLoaded"),
    S("driver", "river/library version mismatch"),
    # The model.
    S("unsupported_arch", "Transformers does not recognize this architecture"),
    S("unsupported_arch", "are not supported for now. Supported architectures"),
    S("unsupported_arch", "Model architectures", pattern=r"failed to be inspected"),
    S("unsupported_arch", "Cannot find model module."),
    S("unsupported_arch", "There is no module or parameter named"),
    # "Attempted to load weight (torch.Size([3600])) into ..", "Tried to load weights of size torch.Size([2048, 10240])to a parameter ..".
    S("unsupported_arch", "to load weight", pattern=r"(?:Attempted|Tried) to load weight.*torch\.Size"),
    # The image's tokenizers library is older than the model's tokenizer.json.
    S("unsupported_arch", "data did not match any variant of untagged enum"),
    S("unsupported_arch", "implementation is not compatible with"),
    S("unsupported_arch", "has no SGlang implementation"),
    S("unsupported_arch", "object has no attribute", pattern=r"AttributeError: '\w*Config' object has no attribute"),
    # "Error while deserializing header: incomplete metadata, file not fully covered", "device error: Input/output error".
    S("missing_weights", "SafetensorError", remedy=_SHARD),
    S("missing_weights", "UnpicklingError", remedy=_SHARD),
    S("missing_weights", "EOFError: Ran out of input", remedy=_SHARD),
    S("missing_weights", "Unable to load weights from pytorch checkpoint file", remedy=_SHARD),
    S("missing_weights", "Consistency check failed: file should be of size", remedy=_SHARD),
    S("missing_weights", "is not a valid JSON file", remedy=_SHARD),
    S("missing_weights", "[Errno", remedy=_SHARD, pattern=r"\[Errno (?:5|116|117|121)\] .*(?:\.(?:safetensors|bin|pt|gguf|json)\b|[Mm]odel)"),
    S("missing_weights", "PytorchStreamReader failed", remedy=_SHARD),
    S("missing_weights", "shard file(s) missing from", remedy=_SHARD),
    S("missing_weights", "Weight files referenced in index but missing", remedy=_SHARD),
    S("missing_weights", "weights were not initialized from checkpoint", remedy=_SHARD),
    S("permission", "GatedRepoError", remedy=_GATED),
    S("permission", "You are trying to access a gated repo", remedy=_GATED),
    S("bad_flag", "trust_remote_code=True", remedy=_TRUST),
    S("bad_flag", "requires you to execute the configuration file in that repo", remedy=_TRUST),
    S("bad_flag", "contains custom code which must be executed", remedy=_TRUST),
    S("missing_weights", "is not a local folder and is not a valid model identifier"),
    S("missing_weights", "Error no file named"),
    S("missing_weights", "Incorrect path_or_model_id"),
    S("missing_weights", "offline mode is enabled"),
    S("missing_weights", "'huggingface.co'", pattern=r"Max retries exceeded|Failed to resolve|Read timed out"),
    S("missing_weights", "CAS service error"),
    S("missing_weights", "Invalid repository ID or local directory specified"),
    S("missing_weights", "Could not detect config format for no config file found"),
    S("missing_weights", "Cannot find the config file for"),
    S("missing_weights", "Repository Not Found"),
    S("missing_weights", "RepositoryNotFoundError"),
    S("missing_weights", "HFValidationError"),
    S("missing_weights", "Repo id must be in the form"),
    S("missing_weights", "LocalEntryNotFoundError"),
    S("missing_weights", "Can't load the configuration"),
    S("missing_weights", "Can't load tokenizer"),
    S("missing_weights", "does not appear to have a file named"),
    S("missing_weights", "Cannot find any", pattern=r"Cannot find any \w* ?model weights with"),
    S("missing_weights", "couldn't connect to 'https://huggingface.co'"),
    S("missing_weights", "FileNotFoundError", pattern=r"\.(?:safetensors|bin|pt|gguf|json|model)\b|[Mm]odel"),
    S("permission", "401 Client Error", remedy=_AUTH),
    S("permission", "403 Client Error", remedy=_AUTH),
    S("permission", "PermissionError"),
    S("permission", "Permission denied"),
    S("permission", "Read-only file system"),
    S("permission", "permission denied", line=True, pattern=r"(?i)exec .*permission denied|OCI runtime"),
    # Ports and names.
    # ".. (errno: 99 - Cannot assign requested address)": the address is not this node's.
    S("net_unreachable", "The server socket has failed to", pattern=r"annot assign requested address"),
    S("port_in_use", "The server socket has failed to listen on any local network address", pattern=r"server|port: (?P<port>\d+)"),
    S("port_in_use", "error while attempting to bind on address", line="error while"),
    S("port_in_use", "[Errno 98]"),
    # zmq, grpc and others: "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5557')".
    S("port_in_use", "ddress already in use", pattern=r"(?i)^(?!.*NCCL error)"),
    # Ray: "Ray is trying to start at 10.0.0.1:6379, but is already running at 10.0.0.1:6379."
    S("port_in_use", "but is already running at"),
    S("port_in_use", "is trying to use a port number"),
    # Another Ray of the same node answers on the port: "Session name session_a does not match persisted value b'session_b'".
    S("port_in_use", "does not match persisted value"),
    S("port_in_use", "EADDRINUSE"),
    S("port_in_use", "port is already allocated"),
    S("port_in_use", "Could not find open port after"),
    S("net_unreachable", "Cannot resolve host"),
    S("gloo_wrong_iface", "Unable to find address for:", remedy=_GLOO),
    S("gloo_wrong_iface", "connectFullMesh failed", "relay", pattern=r"remote=\[?(?P<loopback>127\.[\d.]+)", remedy=_GLOO),
    S("gloo_wrong_iface", "connectFullMesh failed", remedy=_GLOO),
    S("net_unreachable", "no socket interface found", line="NCCL WARN", remedy=_NCCL_INTERFACE),
    S("net_unreachable", "Name or service not known"),
    S("net_unreachable", "Temporary failure in name resolution"),
    S("net_unreachable", "annot assign requested address"),
    S("net_unreachable", "ZMQError: No such device"),
    S("net_unreachable", "Address family not supported by protocol"),
    S("unknown", "No space left on device", remedy=_DISK),
    S("unknown", "Too many open files", remedy=_FILES),
    S("worker_died", "Fatal Python error: Bus error", "death", line="Fatal Python error:", remedy=_SHM),
    S("worker_died", "Fatal Python error:", "death", line=True),
    # NCCL.
    # "Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f1:1"; without ibv_set_ece and others it goes on.
    S("ib_error", "ibv_", line="NCCL WARN", pattern=r"ibv_(?:modify_qp|reg_mr|create_|alloc_pd|post_|poll_cq)\w*.*(?:failed|Cannot allocate)"),
    S("ib_error", "Got completion from peer", line="NCCL WARN", pattern=r"with (?:error|status)"),
    S("nccl_timeout", "Watchdog caught collective operation timeout", "peer", line="atchdog"),
    S("nccl_timeout", "Timeout at NCCL work", "peer"),
    S("nccl_timeout", "watchdog got stuck for", "peer", line="atchdog"),
    S("net_unreachable", "No route to host", line="NCCL WARN", pattern=r"NCCL WARN(?!.*retrying)"),
    S("net_unreachable", "Network is unreachable", line="NCCL WARN", pattern=r"NCCL WARN(?!.*retrying)"),
    S("peer_exited", "remote process exited or there was a network error", "peer"),
    # torch: "[0] is setting up NCCL communicator and retrieving ncclUniqueId from [1] via .., but store->get('0') got error: wait timeout".
    S("rendezvous_timeout", "store->get(", "peer", pattern=r"got error: (?:wait timeout|Socket Timeout)"),
    S("nccl_timeout", "detected by watchdog", "peer", line="atchdog", pattern=r"Exception \(either an error or timeout\)"),
    # torch: "NCCL error in: /pytorch/torch/csrc/..cpp:3690, unhandled system error, NCCL version 2.28.9".
    S("nccl_error", "NCCL error in:"),
    S("nccl_error", "NCCL error:"),
    S("nccl_error", "NCCL WARN", "soft", line=True),
    # Ray.
    S("peer_exited", "its node has died", "peer"),
    S("worker_died", "The actor died", "death", pattern=r"Actor\w*Error"),
    S("peer_exited", "ActorUnavailableError", "peer"),
    S("rendezvous_timeout", "Could not find any running Ray instance", remedy=_RAY),
    S("rendezvous_timeout", "No node info found matching attributes", remedy=_RAY),
    S("rendezvous_timeout", "onnect to GCS at", "soft", line=True, remedy=_RAY),
    S("rendezvous_timeout", "Failed to connect to GCS", "peer", remedy=_RAY),
    # The others.
    S("peer_exited", "Connection closed by peer", "peer", pattern=r"closed by peer(?: \[(?P<peer>[\d.a-fA-F:]+)\])?"),
    S("peer_exited", "Connection reset by peer", "peer", pattern=r"(?:\[(?P<peer>[\d.a-fA-F:]+)\]:\d+: )?Connection reset"),
    S("peer_exited", "monitoredBarrier", "peer", pattern=r"but received errors|failed to pass"),
    S("custom_allreduce_ipc", "CUDART error: invalid resource handle"),
    # Gloo: "pair.cc:538] Read error [10.0.0.1]:5000: Connection timed out".
    S("peer_exited", "Connection timed out", "peer", pattern=r"pair\.cc(?:.*\[(?P<peer>[\d.a-fA-F:]+)\]:\d+)?"),
    S("peer_exited", "recvValue failed on SocketImpl", "soft", line="[c10d]"),
    S("peer_exited", "sendBytes failed on SocketImpl", "soft", line="[c10d]"),
    S("peer_exited", "Broken pipe", "peer"),
    S("peer_exited", "failed to recv, got 0 bytes", "peer"),
    S("peer_exited", "Did the remote server shutdown or crash", "peer"),
    S("rendezvous_timeout", "clients joined", "peer", pattern=r"(?P<joined>\d+)/(?P<wanted>\d+) clients joined"),
    S("net_unreachable", "No route to host", "soft", line="[c10d]", pattern=r"\[c10d\]"),
    S("net_unreachable", "Network is unreachable", "soft", line="[c10d]", pattern=r"\[c10d\]"),
    S("net_unreachable", "No route to host", "peer"),
    S("net_unreachable", "Network is unreachable", "peer"),
    S("rendezvous_timeout", "The client socket has timed out after", "soft", line="[c10d]", pattern=r"\[c10d\]"),
    S("rendezvous_timeout", "The client socket has timed out after", "peer"),
    S("rendezvous_timeout", "failed to connect", "peer", pattern=r"DistNetworkError"),
    S("rendezvous_timeout", "TCP client failed to connect/validate to host", "soft", line="[c10d]"),
    S("nccl_timeout", "Timed out waiting", "peer", pattern=r"gloo|wait_until|barrier"),
    S("nccl_timeout", "Application timeout caused pair closure", "peer"),
    S("rendezvous_timeout", "store based barrier", "peer", pattern=r"Timed out initializing process group"),
    S("rendezvous_timeout", "wait timeout after", "peer", pattern=r"DistStoreError"),
    S("rendezvous_timeout", "Socket Timeout", "peer"),
)

# What NCCL tells of itself with NCCL_DEBUG=INFO (2.18 to 2.30): "spark1:3603:3603 [0] NCCL INFO Using network IB". It writes into a
# buffer: its lines come late, cut in the middle and with other lines glued on, so nothing here is bound to the beginning of a line.
NCCL: t.Tuple[F, ...] = (
    F("version", "NCCL version ", r"NCCL version (\d[\w.]*)"),
    # "Bootstrap: Using enp1s0f1np1:10.0.0.1<0>", before 2.24 "Bootstrap : Using".
    F("bootstrap", "Bootstrap", r"Bootstrap ?: Using (?:\[\d+\])?([\w.-]+:[\da-fA-F.:]+)"),
    F("network", "Using network ", r"Using network (\w+)"),
    # "NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:10.0.0.1<0>", "NET/Socket : Using [0]eth0:10.77.1.1<0>".
    F("devices", " : Using [", r" : Using (\[\d+\][^;\r\n]+)"),
    F("no_device", "No device found", r"(NET/\w+) : No device found"),
    F("inits", "- Init ", r"nranks (\d+) [^\n]{0,300}?- Init (START|COMPLETE)", "count"),
    # "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "Channel 00 : 0[0] -> 1[1] via P2P/IPC", "via SHM/direct/direct".
    F("channels", " via ", r"via (NET/\w+(?:/\d+)?(?:\(\d+\))?|P2P|SHM|COLLNET|NVLS)", "count"),
    F("connected", "Connected all ", r"Connected all (rings|trees)", "sum"),
    F("gdr", "/GDRDMA", r"via NET/\S+/(GDRDMA)"),
    F("gdr", " GDR ", r"PXN \d+ (GDR \d+)"),
    F("warning", "NCCL WARN", r"NCCL WARN ([^\r\n]+)"),
)
# fmt: on
