# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A program of one file for the nodes, made of the collection's own module utils: the same sources give the same bytes, on any controller."""

from __future__ import annotations

import ast
import functools
import io
import pathlib
import zipfile

_PACKAGE = "ansible_collections.sparkstack.inference.plugins.module_utils"
_UTILS = pathlib.Path(__file__).resolve().parents[1] / "module_utils"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = """\
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
import sys

from {package}.{util} import main

sys.exit(main(sys.argv[1:]))
"""


@functools.lru_cache(maxsize=4)
def build(util: str) -> bytes:
    """The program whose C(main(arguments)) a module util has, with all utils that it needs.

    :param util: the util's name, such as C(_autostart_agent).
    :raises ValueError: when a util imports what a node's Python does not have.
    """
    files = {_path(name): source.read_text("utf-8") for name, source in _closure(util).items()}
    for name in list(files):
        for parent in list(pathlib.PurePosixPath(name).parents)[:-1]:
            files.setdefault(f"{parent}/__init__.py", "")
    files["__main__.py"] = _MAIN.format(package=_PACKAGE, util=util)
    packed = io.BytesIO()
    # Stored, for what two versions of zlib make of the same text differs.
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, files[name])
    return packed.getvalue()


def _closure(util: str) -> dict[str, pathlib.Path]:
    """The sources of a util and of all that it imports of the collection, by their names below the package."""
    found: dict[str, pathlib.Path] = {}
    waiting = [util]
    while waiting:
        name = waiting.pop()
        source = _source(name)
        if name in found or source is None:
            continue
        found[name] = source
        waiting += name.rpartition(".")[0].split(".") if "." in name else []
        waiting += _imports(source)
    return found


def _imports(source: pathlib.Path) -> list[str]:
    """The names below the package that a util may import; some are a util's functions and not utils."""
    names = []
    for statement in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(statement, ast.Import):
            modules = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            modules = [statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)]
        else:
            continue
        foreign = [module for module in modules if module.split(".")[0] == "ansible"]
        if foreign:
            raise ValueError(f"{source.name} imports {foreign[0]}, which a node does not have.")
        names += [module[len(_PACKAGE) + 1 :] for module in modules if module.startswith(_PACKAGE + ".")]
    return names


def _source(name: str) -> pathlib.Path | None:
    place = _UTILS.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def _path(name: str) -> str:
    """Where a util lies in the program."""
    folder = _PACKAGE.replace(".", "/") + "/" + name.replace(".", "/")
    return f"{folder}/__init__.py" if (_UTILS.joinpath(*name.split(".")) / "__init__.py").is_file() else f"{folder}.py"
