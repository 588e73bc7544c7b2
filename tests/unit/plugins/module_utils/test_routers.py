# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a router's container tells, and the file that was kept of it."""

from __future__ import annotations

import json
import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _ranks, _routers

KEPT = {"kind": "nginx", "port": 8080, "listen_address": "0.0.0.0", "upstreams": ["a:1"], "model": "m", "digest": "d", "more": 1}
FILE = "etc/sparkstack/router/qwen/router.json"


def inspection(name: str = "qwen-router", deployment: str | None = "qwen", **state: t.Any) -> dict[str, t.Any]:
    """As Docker 28 shows it, less what isn't read."""
    return {
        "Id": "c1",
        "Name": f"/{name}",
        "Config": {"Image": "nginx:1", "Labels": {"sparkstack.router": deployment} if deployment else None},
        "State": {"Running": True, "Restarting": False, "ExitCode": 0, "StartedAt": "2026-11-29T10:00:00.5Z", **state},
    }


def test_a_router_is_told_with_what_it_was_started_with(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    api: t.Any = types.SimpleNamespace(get=lambda path, query: [{"Id": "c1"}, {"Id": "gone"}], container=lambda name: inspection() if name == "c1" else None)
    (found,) = _routers.routers(api, folder_of({FILE: json.dumps(KEPT)}))
    assert found == {
        "name": "qwen-router", "id": "c1", "deployment": "qwen", "image": "nginx:1", "running": True, "exit_code": 0,
        "started_at": "2026-11-29T10:00:00.5Z", "kind": "nginx", "listen_address": "0.0.0.0", "port": 8080, "upstreams": ["a:1"], "model": "m", "digest": "d",
    }  # fmt: skip


@pytest.mark.parametrize("content", ["{", "[1]", "null"])
def test_a_file_that_holds_something_else_is_borne(folder_of: t.Callable[[dict[str, str]], str], content: str) -> None:
    found = _routers.describe(inspection(Restarting=True), folder_of({FILE: content}))
    assert found["kind"] is None and found["upstreams"] is None and not found["running"]


@pytest.mark.parametrize("deployment", ["..", "", ".", "../router/qwen", "other"])
def test_a_label_leads_to_no_file_elsewhere(folder_of: t.Callable[[dict[str, str]], str], deployment: str) -> None:
    root = folder_of({FILE: json.dumps(KEPT), "etc/sparkstack/router.json": json.dumps(KEPT), "etc/sparkstack/router/router.json": json.dumps(KEPT)})
    assert _routers.told(deployment, root) == {}


@pytest.mark.parametrize(("deployment", "image"), [("qwen", None), ("other", "nginx:1"), (None, "nginx:1")])
def test_a_container_that_has_the_routers_name_and_is_none_is_told(deployment: str | None, image: str | None) -> None:
    api: t.Any = types.SimpleNamespace(container=lambda name: inspection(deployment=deployment) if name == "qwen-router" else None)
    assert _ranks.foreign(api, _routers.name("qwen"), "qwen") == image
