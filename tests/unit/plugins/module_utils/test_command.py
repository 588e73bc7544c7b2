# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command lines as they may be shown: what they tell, and that no secret comes out of them."""

from __future__ import annotations

import random

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _command

SPAWN = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=46, pipe_handle=48)"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["python3", "-m", "sglang.launch_server", "--model-path", "/models/Qwen3.5-122B-A10B-FP8", "--api-key", "abc", "def", "--tp", "2"],
            "python3 -m sglang.launch_server --model-path /models/Qwen3.5-122B-A10B-FP8 --api-key *** *** --tp 2",
        ),
        (["vllm", "serve", "Qwen/Qwen3-32B", "--api-key=abc", "--max-num-seqs=4"], "vllm serve Qwen/Qwen3-32B --api-key=*** --max-num-seqs=4"),
        (["env", "HF_TOKEN=abc", "VLLM_HOST_IP=192.168.200.11", "vllm"], "env HF_TOKEN=*** VLLM_HOST_IP=192.168.200.11 vllm"),
        (["docker", "run", "-e", "HF_TOKEN=abc", "-eAPI_KEY=abc"], "docker run -e HF_TOKEN=*** -eAPI_KEY=***"),
        (["llama-server", "--tokenizer", "x", "--max-tokens", "5", "--token", "abc"], "llama-server --tokenizer x --max-tokens 5 --token ***"),
        (["x", "--config", '{"api_key": "abc", "tp": 2}'], 'x --config \'{"api_key": "***", "tp": 2}\''),
        (["x", "--config", '{"api_key": "abcdef",'], 'x --config \'{"api_key": "***",\''),
        # A title is no shell's.
        (
            ['server  --config {"api_key": "abc", "tp": 2} --api-key "a bc" --port 8000'],
            "server --config '{\"api_key\":' '\"***\",' '\"tp\":' '2}' --api-key *** *** --port 8000",
        ),
        (["curl", "-H", "Authorization: Basic dXNlcjpwdw==", "-H", "X-Api-Key: abc"], "curl -H 'Authorization: ***' -H 'X-Api-Key: ***'"),
        (["x", "https://user:abc@host/v1?key=abc&n=1"], "x 'https://user:***@host/v1?key=***&n=1'"),
        (["bash", "-c", "export A=abc; vllm serve"], "bash -c ***"),
        (["python3", "-uc", "key = 'abc'; run(key)"], "python3 -uc ***"),
        (["/usr/bin/python3.12", "-c", SPAWN, "--multiprocessing-fork"], f"/usr/bin/python3.12 -c '{SPAWN}' --multiprocessing-fork"),
        (["python3", "-u", "/srv/app.py", "-c", "app.toml"], "python3 -u /srv/app.py -c app.toml"),
        (["node", "-e", "abc()"], "node -e ***"),
        (["sh", "-e", "start.sh"], "sh -e start.sh"),
        (["x", "ghp_abcdefghijk", "sk-abcdefghijklmn", "eyJhbGciOiJIUzI1NiJ9.e30.abc"], "x *** sk-*** ***"),
        (["x", "AbC123def456GhI789jkl0mn", COMMIT, f"/hub/snapshots/{COMMIT}"], f"x *** *** /hub/snapshots/{COMMIT}"),
        (["VLLM::Worker_TP1"], "VLLM::Worker_TP1"),
        (["nginx: worker process --password=abc"], "nginx: worker process --password=***"),
        (["server --hf-token abc --port 8000"], "server --hf-token *** --port 8000"),
        (["it's unfinished --api-key abc 'x"], "'it'\"'\"'s' unfinished --api-key *** ***"),
        (["x\x1b[31m\n\u202e", "é"], "'x?[31m??' é"),
        ([""], None),
    ],
)
def test_shown(words: list[str], expected: str | None) -> None:
    assert _command.shown("\0".join(words) + "\0") == expected


def test_a_title_is_followed_by_what_was_there_before() -> None:
    assert _command.shown("sglang::scheduler_TP0" + "\0" * 300) == "sglang::scheduler_TP0"
    assert _command.shown("postgres: idle" + " " * 40) == "postgres: idle"
    assert _command.shown("") is None


def test_a_long_one_is_cut_after_its_secrets_are_hidden() -> None:
    told = _command.shown("\0".join(["vllm", *["--lora-modules x"] * 60, "--api-key", "abc"]))
    assert told is not None
    assert (len(told), told[-4:]) == (400, " ...")
    # Were it cut first, the end of the option's name would be gone.
    edge = "x " * 192 + "--api-key abcdefghijkl"
    assert "abcdef" not in str(_command.shown(edge.replace(" ", "\0")))


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("sglang::scheduler_TP0", "sglang::scheduler_TP0"),
        ("/root/tools/memhög ünïcode", "/root/tools/memhög ünïcode"),
        ('/root/tools/mem "q" hog', '/root/tools/mem "q" hog'),
        ('a<b&c, d"e', 'a<b&c, d"e'),
        ("server --api-key s3cr3tvalue -x", "server --api-key *** -x"),
        ("hf_AbCdEfGhIjKlMnop", "hf_***"),
        ("", None),
        (None, None),
    ],
)
def test_a_name(title: str | None, expected: str | None) -> None:
    assert _command.name(title) == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_secret_comes_out_wherever_it_stands(seed: int) -> None:
    chance = random.Random(seed)
    plain = ["vllm", "serve", "--tp", "2", "-v", "--port=8000", "/models/a b", "x=1", "", "-", "--", "é", '{"a": 1}']
    for _round in range(50):
        secret = "".join(chance.choice("abcdefghijkmnpqrstuvwxyz23456789_.~+/") for _each in range(chance.randint(6, 40)))
        forms = [
            ["--api-key", secret],
            [f"--api-key={secret}"],
            [f"HF_TOKEN={secret}"],
            ["--hf-token", secret],
            [f'{{"password": "{secret}"}}'],
            ["-c", secret],
        ]
        words = chance.choices(plain, k=chance.randint(0, 6))
        at = chance.randint(0, len(words))
        shell = chance.random() < 0.2
        given = ["bash", "-c", secret] if shell else [*words[:at], *chance.choice(forms[:-1]), *words[at:]]
        assert secret not in str(_command.shown("\0".join(given) + "\0")), given
