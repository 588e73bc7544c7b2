#!/usr/bin/env bash
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# The artifact as Galaxy's own importer sees it, with all that a certified hub asks for. A warning of its is an error. Called by `make importer`, with
# the environment build/importer in place.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/build/importer/bin
log=$PWD/build/importer.log
artifact=$(.venv/bin/python tests/artifact.py build/artifact)
export PATH="$bin:$PATH" LC_ALL=C.UTF-8
export GALAXY_IMPORTER_CHECK_REQUIRED_TAGS=true GALAXY_IMPORTER_REQUIRE_V1_OR_GREATER=true
# Its lint looks for the collections that ours uses, and reads no environment: they are lent to its Python.
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
ln -sfn "$(site .venv/bin/python)/ansible_collections" "$(site "$bin/python")/ansible_collections"
cd build
if ! "$bin/python" -m galaxy_importer.main "artifact/${artifact##*/}" > "$log" 2>&1 || grep -E '^(WARNING|ERROR|CRITICAL)' "$log"; then
    tail -n 5 "$log"
    echo "importer: failed; all of it is in $log" >&2
    exit 1
fi
tail -n 1 "$log"
