# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang 0.5.17's options, read from what it once printed: the usage of a refused command line, and its server_args line.

The usage tells names, choices and how many values; the server_args line the defaults, and by these the types. Both were
recorded from the engine itself and lie in the folder recorded (see copy_recorded).
"""

import argparse
import ast
import pathlib
import re
import typing as t

RECORDED = pathlib.Path(__file__).resolve().parent / "recorded"
# The usage shows the first spelling only.
ALIASES = {
    "--model-path": ("--model",),
    "--tp-size": ("--tensor-parallel-size",),
    "--pp-size": ("--pipeline-parallel-size",),
    "--dp-size": ("--data-parallel-size",),
    "--ep-size": ("--expert-parallel-size", "--ep"),
    "--dist-init-addr": ("--nccl-init-addr",),
}
# Where None is the default, the line does not tell the type.
INTEGERS = frozenset(
    "context_length max_running_requests max_queued_requests max_total_tokens chunked_prefill_size page_size nccl_port dist_timeout random_seed "
    "cuda_graph_max_bs_decode cuda_graph_max_bs_prefill cuda_graph_bs_decode cuda_graph_bs_prefill speculative_num_steps speculative_eagle_topk".split()
)
FLOATS = frozenset(["mem_fraction_static", "soft_watchdog_timeout", "watchdog_timeout"])
# What the engine works out itself when the option is not given; the recorded line shows another machine's.
WORKED_OUT = frozenset("mem_fraction_static random_seed tokenizer_path served_model_name attention_backend sampling_backend dist_init_addr".split())


def split_top(text: str) -> list[str]:
    """The parts of a text between commas outside of brackets and quotes."""
    parts, depth, quote, begin = [], 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    return [part.strip() for part in (*parts, text[begin:])]


def recorded_values() -> dict[str, str]:
    """The recorded server_args line: name to value as it was printed."""
    line = (RECORDED / "server_args.txt").read_text(encoding="utf-8").strip()
    inner = line[line.index("ServerArgs(") + len("ServerArgs(") : -1]
    return dict(part.split("=", 1) for part in split_top(inner))


def _value(text: str | None) -> t.Any:
    try:
        return None if text is None else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None  # CudaGraphConfig(..)


def _kind(dest: str, default: t.Any) -> t.Callable[[str], t.Any]:
    if dest in INTEGERS or type(default) is int:
        return int
    return float if dest in FLOATS or type(default) is float else str


def parser() -> argparse.ArgumentParser:
    """The option parser; plain argparse with abbreviations, as the engine's own."""
    defaults = recorded_values()
    usage = " ".join((RECORDED / "usage.txt").read_text(encoding="utf-8").split())
    made = argparse.ArgumentParser(prog="sglang serve")
    made.add_argument("--model-path", *ALIASES["--model-path"], required=True)
    # "[--nnodes NNODES] [--numa-node NUMA_NODE [NUMA_NODE ...]] [--custom-weight-loader [X ...]] [--dtype {auto,half}] [--a | --no-a]"
    for name, negation, rest in re.findall(r"\[(--[\w-]+)( \| --no-[\w-]+)?((?: [^\[\]]+)?(?: ?\[[^\[\]]*\])?)\]", usage):
        word = rest.strip().split(" ")[0].strip("[]")
        names = (name, *ALIASES.get(name, ()))
        if negation:
            made.add_argument(*names, action=argparse.BooleanOptionalAction, default=None)
        elif not word:
            made.add_argument(*names, action="store_true")
        else:
            dest = name[2:].replace("-", "_") if word.startswith("{") else word.lower()
            default = None if dest in WORKED_OUT else _value(defaults.get(dest))
            more = {"choices": word[1:-1].split(",")} if word.startswith("{") else {"metavar": word}
            nargs = None if "[" not in rest else ("?" if "..." not in rest else "*" if rest.strip().startswith("[") else "+")
            made.add_argument(*names, dest=dest, type=_kind(dest, default), default=default, nargs=nargs, **more)
    return made


def server_args(given: argparse.Namespace) -> str:
    """The line that the engine prints of all its options."""
    values = recorded_values()
    for name, value in vars(given).items():
        if name in values:
            values[name] = repr(value)
    values["tokenizer_path"] = values["model_path"]
    return f"server_args=ServerArgs({', '.join(f'{name}={value}' for name, value in values.items())})"


def capture_sizes(phase: str) -> list[int]:
    """The recorded sizes for which graphs are captured: phase is "decode" (batches) or "prefill" (tokens)."""
    config = recorded_values()["cuda_graph_config"]
    found = re.search(phase + r"=PhaseConfig\(.*?bs=\[([\d, ]+)\]", config)
    return [int(size) for size in found[1].split(",")] if found else []


def copy_recorded(logs: pathlib.Path, folder: pathlib.Path) -> None:
    """Take usage and server_args line out of the recorded logs into a folder."""
    refused = (logs / "flag-of-other-engine" / "head.log").read_text(encoding="utf-8")
    started = (logs / "ready-cold" / "head.log").read_text(encoding="utf-8")
    folder.mkdir(parents=True)
    usage = refused[refused.index("usage: ") : refused.index("sglang serve: error:")]
    (folder / "usage.txt").write_text(usage, encoding="utf-8")
    line = next(line for line in started.splitlines() if "server_args=" in line)
    (folder / "server_args.txt").write_text(line[line.index("server_args=") :] + "\n", encoding="utf-8")
