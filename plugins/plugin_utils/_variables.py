# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What can be wrong with the value of a variable that a user gives, by the kind that the roles' argument specifications say it is of.

Ansible checks the same when a role begins, with words of its own about types, and by then nodes may have been reached. Where a playbook reads a
variable without a role, C(| bool) would take any word that it does not know for no.
"""

from __future__ import annotations

import os
import typing as t

import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError, parse_address, parse_network

Option = t.Mapping[str, t.Any]

SPECS = os.path.join("meta", "argument_specs.yml")
PLAYBOOKS: t.Mapping[str, Option] = {name: {"type": "bool"} for name in ("deploy_preflight", "fabric_configure")}
"""What only playbooks read."""
NETWORKS = ("fabric_cidr", "fabric_configure_cidr", "nccl_env_fabric_cidr", "preflight_fabric_cidr")
ADDRESSES = ("fabric_address", "nccl_env_fabric_address", "nccl_env_control_address", "preflight_fabric_address", "preflight_control_address")
INSTEAD = {"image_sync_image": "tp_launch_image", "model_staging_path": "tp_launch_model_path", "node_prep_cache_dir": "tp_launch_cache_dir"}
"""What the playbooks give their roles by what the recipe says, and what changes that. On the command line the former would be stronger than the playbook, and
bring something else than is then started."""
_SWITCH = ("true", "false", "yes", "no", "on", "off", "1", "0")
"""What both Ansible's check of types and its filter C(bool) take; of V(y) and V(t) the latter makes false before ansible-core 2.19."""
_NUMBERS: t.Mapping[str, t.Callable[[str], t.Any]] = {"int": int, "float": float}


def options(roles: str) -> dict[str, Option]:
    """Every variable that the playbooks and roles document, with its option.

    :param roles: the folder of the collection's roles. :raises OSError: when a file of theirs can't be read.
    """
    found: dict[str, Option] = dict(PLAYBOOKS)
    for role in sorted(os.listdir(roles)):
        path = os.path.join(roles, role, SPECS)
        if not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8") as stream:
            # Ten times as fast where PyYAML has it.
            entries = yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["argument_specs"]
        for entry in entries.values():
            for name, option in (entry.get("options") or {}).items():
                found.setdefault(name, option)
    found.update({name: {"type": "network"} for name in NETWORKS})
    found.update({name: {"type": "address"} for name in ADDRESSES})
    return found


def overruling(given: t.Iterable[str]) -> list[str]:
    """A sentence on each variable that a playbook sets by itself. :param given: the names of all that stand on the command line."""
    return [
        f"{name} can't be given on the command line, as the playbooks set it by the recipe: give {INSTEAD[name]}." for name in sorted(set(given) & set(INSTEAD))
    ]


def problem(name: str, value: t.Any, option: Option) -> str:
    """A sentence on a value that can't be meant, which says what to write; nothing where it can.

    :param name: how the user has called it. :param value: what was given; None counts as not given. :param option: as an argument specification has it.
    """
    kind = option.get("type", "str")
    if value is None or kind in ("raw", "str", "path") and not option.get("choices"):
        return ""
    shown = f"{name} is {str(value)!r}" if isinstance(value, (str, int, float)) and str(value) else f"{name} is empty" if value in ("", [], {}) else name
    if kind == "bool":
        return "" if str(value).lower() in _SWITCH else f"{shown}, and can only be true or false: write {name}=true or {name}=false."
    if option.get("choices"):
        return "" if value in option["choices"] else f"{shown}, and can only be one of these: {', '.join(map(str, filter(None, option['choices'])))}."
    if kind in _NUMBERS:
        return "" if _number(value, kind) else f"{shown}, and has to be {'a whole number' if kind == 'int' else 'a number'}, such as {_example(option)}."
    if kind in ("network", "address"):
        return _fabric(name, value, kind)
    return _inner(name, shown, value, option)


def _number(value: t.Any, kind: str) -> bool:
    if isinstance(value, (bool, list, dict)):
        return False
    try:
        return bool(_NUMBERS[kind](str(value)) == float(value))
    except ValueError:
        return False


def _example(option: Option) -> t.Any:
    """A value of that kind: the default, where it is one."""
    default = option.get("default")
    return default if isinstance(default, (int, float)) and default > 0 else 10


def _fabric(name: str, value: t.Any, kind: str) -> str:
    if value == "":
        return "" if kind == "address" else f"{name} is empty: write it like 192.168.200.0/24, or leave it out."
    try:
        if kind == "network":
            parse_network(str(value), name)
        else:
            parse_address(str(value), name)
    except FabricError as error:
        return str(error)
    return ""


def _inner(name: str, shown: str, value: t.Any, option: Option) -> str:
    """Of a list or a mapping. A text can be either: Ansible takes it apart by commas, or as JSON or C(key=value)."""
    if option["type"] == "list":
        if isinstance(value, t.Mapping):
            return f"{name} is a mapping, and has to be a list: write {name}: [ONE, TWO]."
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        kind = {"type": option.get("elements", "raw")}
        return next((told for told in (problem(f"{name}[{at}]", part, kind) for at, part in enumerate(parts) if part != "") if told), "")
    if option["type"] != "dict" or isinstance(value, str) and ("=" in value or value.lstrip().startswith("{")):
        return ""
    if not isinstance(value, t.Mapping):
        return f'{shown}, and has to be a mapping: write {name}: {{NAME: VALUE}} in the inventory, or -e \'{{"{name}": {{"NAME": "VALUE"}}}}\'.'
    known = option.get("options") or {}
    for key, given in value.items():
        if known and key not in known:
            return f"There is no {name}.{key}: {name} takes {', '.join(sorted(known))}."
        told = problem(f"{name}.{key}", given, known[key]) if known else ""
        if told:
            return told
    return ""
