#!/usr/bin/env bash
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Builds the site of all plugins and roles, build/docs/site, out of the installed collection. A warning is an error, but for links into the
# documentation of Ansible itself and of the collections that this one depends on, whose indexes can't be had without a network.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" ANSIBLE_COLLECTIONS_PATH="$PWD/build/collections" LC_ALL=C.UTF-8
rm -rf build/docs
mkdir -p build/docs/rst
antsibull-docs collection --use-current --squash-hierarchy --fail-on-error --no-add-antsibull-docs-version --dest-dir build/docs/rst sparkstack.inference
sphinx-build -q -C -D extensions=sphinx_antsibull_ext -D project=sparkstack.inference -D nitpicky=1 build/docs/rst build/docs/site 2> build/docs/log
elsewhere="undefined label: '(common_return_values|action_plugins|ansible_configuration_settings|ansible_collections\.(community\.docker|ansible\.[a-z]+)\.[a-z_]+)'"
if grep -E 'WARNING|ERROR' build/docs/log | grep -vE "$elsewhere"; then
    exit 1
fi
for plugin in plugins/modules/*.py plugins/filter/*.py plugins/lookup/*.py roles/*/meta/argument_specs.yml; do
    case $plugin in
        plugins/modules/*) page=$(basename "$plugin" .py)_module ;;
        plugins/filter/*) page=$(basename "$plugin" .py)_filter ;;
        plugins/lookup/*) page=$(basename "$plugin" .py)_lookup ;;
        *) page=$(basename "${plugin%/meta/*}")_role ;;
    esac
    [ -s "build/docs/site/$page.html" ] || { echo "There is no page $page for $plugin."; exit 1; }
done
