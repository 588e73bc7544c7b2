#!/usr/bin/env bash
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Style, types, documentation, licences and the artifact. Called by `make lint`, with the virtual environment in place.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
run() {
    printf '%s\n' "lint: $1"
    shift
    local log
    log=$("$@" 2>&1) || { printf '%s\n' "$log"; exit 1; }
}
source=build/src/ansible_collections/sparkstack/inference
mkdir -p "$(dirname "$source")"
[ -L "$source" ] || ln -s "$PWD" "$source"
export PATH="$bin:$PATH" ANSIBLE_COLLECTIONS_PATH="$PWD/build/collections"

run 'ruff' "$bin/ruff" check .
run 'ruff format' "$bin/ruff" format --check .
run 'mypy' "$bin/mypy" "$source/plugins"
run 'yamllint' "$bin/yamllint" --strict .
run 'licences (reuse)' "$bin/reuse" lint
run 'changelog' "$bin/antsibull-changelog" lint
run 'documentation' "$bin/antsibull-docs" lint-collection-docs --plugin-docs --validate-collection-refs=dependent build/collections/ansible_collections/sparkstack/inference
run 'ansible-doc' "$bin/ansible-doc" --type module --json --list sparkstack.inference
# One call for all: starting Ansible takes longer than reading a module's text.
modules=(plugins/modules/*.py)
shown() {
    local names=("${modules[@]##*/}")
    names=("${names[@]%.py}")
    "$bin/ansible-doc" --type module "${names[@]/#/sparkstack.inference.}" > build/modules.txt
    [ "$(grep -c '^> MODULE ' build/modules.txt)" = "${#modules[@]}" ]
}
run "ansible-doc of ${#modules[@]} modules" shown
run 'syntax of the playbooks' "$bin/ansible-playbook" --syntax-check --inventory sparks.ini deploy_qwen.yml playbooks/*.yml
run 'ansible-lint (production)' "$bin/ansible-lint" --offline
run 'documentation site' tests/docs.sh
# From another copy with other times, in another order on the disk.
twice() {
    local copy=build/twice
    rm -rf "$copy"
    mkdir -p "$copy/tree"
    git ls-files -z --cached --others --exclude-standard | sort -zr | tar --create --null --no-recursion --files-from=- | tar --extract --touch --directory "$copy/tree"
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) "$bin/python" tests/artifact.py "$copy/artifact" "$copy/tree"
    "$bin/python" tests/artifact.py build/artifact
    cmp "$copy"/artifact/*.tar.gz build/artifact/"$(basename "$copy"/artifact/*.tar.gz)"
}
run 'artifact, built twice with the same bytes' twice
