#!/usr/bin/env bash
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# All of ansible-test's sanity tests, of the ansible-core in the environment whose folder of programs is named, and on every Python that it has and
# that is found here: those of nodes (compile, import) and its own. Called by `make sanity CORE=2.18`.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1
core=$("$bin/python" -c 'import ansible.release; print(ansible.release.__version__)')
work=$PWD/build/sanity-${core%.*}
log=$work/log
# What is published is looked at, in a folder of the collection's name, as the tests demand. Tests are no part of it: they hold recorded logs as they were.
tree=$work/ansible_collections/sparkstack/inference
rm -rf "$work/ansible_collections" "$work/artifact"
mkdir -p "$tree"
"$bin/ansible-galaxy" collection build --output-path "$work/artifact" > /dev/null
tar --extract --gzip --file "$work"/artifact/*.tar.gz --directory "$tree"
# A build puts what galaxy.yml says into MANIFEST.json; the tests read the former.
cp galaxy.yml "$tree"
# They take what git knows there, and this checkout ignores its own build folder.
git -C "$tree" init --quiet
git -C "$tree" add --all --force
# Its environments take pip by a script from a server of its own. This one does the same with the pip that Python brings, and stands where the
# script would, in a home of the test's own; where packages come from is still the user's to say.
home=$work/home
mkdir -p "$home/.ansible/test/cache" "$home/.config"
pip=$(sed -n "s/^ *pip='\(.*\)',$/\1/p" "$("$bin/python" -c 'import ansible_test._internal.python_requirements as r; print(r.__file__)')")
cat > "$home/.ansible/test/cache/get_pip_${pip//./_}.py" <<'SCRIPT'
import ensurepip, glob, os, sys
sys.path.insert(0, glob.glob(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled", "pip-*.whl"))[0])
from pip._internal.cli.main import main
sys.exit(main(["install", "--upgrade"] + [a for a in sys.argv[1:] if a not in ("--no-setuptools", "--no-wheel")]))
SCRIPT
for config in .config/pip .pip; do
    [ ! -e "$HOME/$config" ] || ln -sfn "$HOME/$config" "$home/$config"
done
pythons=$(tests/python --folders 3.8 3.9 3.10 3.11 3.12 3.13 3.14)
echo "sanity: ansible-core $core"
begin=$SECONDS
if ! (cd "$tree" && HOME=$home PATH=$bin:$pythons:$PATH "$bin/ansible-test" sanity --color no --verbose > "$log" 2>&1); then
    grep -E '^(ERROR|FATAL)' "$log" || tail -n 30 "$log"
    echo "sanity: failed; all of it is in $log" >&2
    exit 1
fi
if ! grep -q '^Running sanity test' "$log"; then
    echo "sanity: no test was run; all of it is in $log" >&2
    exit 1
fi
# What was left out is told, and why: without a program that it needs, a test is passed over.
grep -E '^WARNING: (Skipping|Ignor)' "$log" | sort -u || true
echo "sanity: $(grep -c '^Running sanity test' "$log") runs of $(sed -n 's/^Running sanity test "\([^"]*\)".*/\1/p' "$log" | sort -u | wc -l) tests in $((SECONDS - begin)) s"
