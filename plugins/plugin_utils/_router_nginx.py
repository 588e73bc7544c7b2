# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The configuration of nginx as a router in front of replicas. Pure.

Source of what the directives do: the reference of nginx's modules ngx_http_proxy_module and ngx_http_upstream_module. What is said of a killed upstream
was tried with Debian's nginx 1.22 and 1.26.
"""

from __future__ import annotations

import json
import typing as t

DIGEST_PATH = "/sparkstack/router"
"""Tells which configuration runs: nginx says nothing of a reload that came to nothing."""
# These compute an answer and keep nothing: sent once more to another replica, they do no harm. Everything else (/v1/responses keeps what it was told,
# /update_weights changes the replica) is passed on only while it was not sent.
_HARMLESS = (
    "v1/completions",
    "v1/chat/completions",
    "v1/messages",
    "v1/embeddings",
    "v1/rerank",
    "v1/score",
    "generate",
    "encode",
    "classify",
    "pooling",
    "rerank",
    "score",
    "tokenize",
    "detokenize",
)
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def configuration(settings: t.Mapping[str, t.Any]) -> str:
    """The whole file; C(@DIGEST@) stands where its digest is to stand.

    :param settings: C(deployment), C(listen_address), C(port), C(upstreams) (address and port each), C(policy), C(timeout) (seconds), C(max_body).
    """
    host = settings["listen_address"]
    # "::" is every address, also of IPv4, as the engines have it; nginx means those of IPv6 alone unless it is told.
    listen = f"[{host}]:{settings['port']}{' ipv6only=off' if host == '::' else ''}" if ":" in host else f"{host}:{settings['port']}"
    policy = [] if settings["policy"] == "round_robin" else [settings["policy"] + ";"]
    servers = [f"server {upstream} max_fails=1 fail_timeout=10s;" for upstream in settings["upstreams"]]
    return f"""\
# Written by sparkstack.inference for {settings["deployment"]}: changes made here are lost at the next run.
daemon off;
worker_processes 2;
worker_shutdown_timeout {settings["timeout"]}s;
pid /tmp/nginx.pid;
error_log stderr warn;

events {{
    worker_connections 4096;
}}

http {{
    # Without the query, in which some clients send their key.
    log_format routed '$remote_addr "$request_method $uri" $status $upstream_addr "$upstream_status" $request_time';
    access_log /dev/stdout routed;
{_block(f"{one}_temp_path /tmp/{one};" for one in _TEMPORARY)}
    server_tokens off;
    default_type application/json;

    # A request has to be known whole before it can be sent once more.
    client_max_body_size {settings["max_body"]};
    client_body_buffer_size 1m;

    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' close;
    }}

    upstream replicas {{
        # Both workers see the same marks: who did not answer is left out for 10 s.
        zone replicas 64k;
{_block([*policy, *servers], 8)}
    }}

    server {{
        listen {listen};
        # Each token goes to the client as it comes.
        proxy_buffering off;
        # A connection a request: one that is kept open may be closed by the replica just when the next request is sent on it, and what was sent is not sent
        # again unless it is known to do no harm.
        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_connect_timeout 3s;
        proxy_send_timeout {settings["timeout"]}s;
        proxy_read_timeout {settings["timeout"]}s;
        # A request that kills what answers it must not go through all replicas; one that took the whole time is not begun again.
        proxy_next_upstream_tries 2;
        proxy_next_upstream_timeout {settings["timeout"]}s;
        proxy_next_upstream error timeout invalid_header;
        error_page 502 @unreached;
        error_page 504 @late;

        location / {{
            proxy_pass http://replicas;
        }}

        location ~ ^/(?:{"|".join(_HARMLESS)})$ {{
            proxy_pass http://replicas;
            proxy_next_upstream error timeout invalid_header non_idempotent;
        }}

        location = {DIGEST_PATH} {{
            access_log off;
            default_type text/plain;
            return 200 @DIGEST@;
        }}

        location @unreached {{
            return 502 '{_error(f"No replica of {settings['deployment']} answers.", 502)}';
        }}

        location @late {{
            return 504 '{_error(f"The replica of {settings['deployment']} did not answer in time.", 504)}';
        }}
    }}
}}
"""


def _block(lines: t.Iterable[str], indent: int = 4) -> str:
    return "\n".join(" " * indent + line for line in lines)


def _error(message: str, code: int) -> str:
    """As the engines tell of an error, so that their clients show the sentence."""
    return json.dumps({"error": {"message": message, "type": "router_error", "code": code}})
