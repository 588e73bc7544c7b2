# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node for the tests of the fabric's trial: a folder with its files, and its tools as scripts for sh that keep the kernel's state there."""

from __future__ import annotations

import os
import pathlib
import subprocess
import typing as t

TOOLS = {
    "ip": r"""
last=$(for word; do :; done; printf %s "$word")
case "$*" in
    "-json addr")
        comma='['
        for link in "$NODE"/sys/class/net/*; do
            name=${link##*/}
            flags=$(cat "$link/up")
            printf '%s{"ifname": "%s", "flags": ["BROADCAST"%s], "mtu": %s, "addr_info": [' "$comma" "$name" "${flags:+, \"UP\"}" "$(cat "$link/mtu")"
            comma=,; inner=''
            while read -r address; do
                printf '%s{"family": "inet", "local": "%s", "prefixlen": %s}' "$inner" "${address%/*}" "${address#*/}"
                inner=,
            done < "$link/addresses"
            printf ']}'
        done
        printf '%s\n' ']' ;;
    "-o -4 addr show dev "*)
        while read -r address; do echo "2: $last    inet $address brd 192.168.200.255 scope global $last"; done < "$NODE/sys/class/net/$last/addresses" ;;
    "-o link show dev "*) echo "2: $last: <BROADCAST,$(cat "$NODE/sys/class/net/$last/up")LOWER_UP> mtu 1" ;;
    "addr del "*) sed -i "\#^$3\$#d" "$NODE/sys/class/net/$last/addresses" ;;
    "addr replace "*) echo "$3" >> "$NODE/sys/class/net/$last/addresses" ;;
    "link set dev "*" mtu "*) echo "$6" > "$NODE/sys/class/net/$4/mtu" ;;
    "link set dev "*" up") echo UP, > "$NODE/sys/class/net/$4/up" ;;
    "link set dev "*" down") : > "$NODE/sys/class/net/$4/up" ;;
    *) exit 99 ;;
esac
""",
    # Its own files only: a name, an MTU and an address an interface.
    "netplan": r"""
root=$NODE
[ "$2" = --root-dir ] && root=$3
if grep -qs broken "$root"/etc/netplan/*.yaml; then echo 'Error in network definition: broken' >&2; exit 78; fi
rm -rf "$root/run/systemd/network"
mkdir -p "$root/run/systemd/network"
cat "$root"/etc/netplan/*.yaml 2>/dev/null | while read -r word value; do
    case $word in
        e*:) name=${word%:} ;;
        mtu:) mtu=$value ;;
        -) echo "$mtu $value" > "$root/run/systemd/network/10-netplan-$name.network" ;;
    esac
done
""",
    "networkctl": r"""
[ -e "$NODE/networkd-is-deaf" ] && exit 0
[ "$1" = reconfigure ] || exit 0
shift
for name; do
    read -r mtu address 2>/dev/null < "$NODE/run/systemd/network/10-netplan-$name.network" || continue
    echo "$mtu" > "$NODE/sys/class/net/$name/mtu"; echo "$address" > "$NODE/sys/class/net/$name/addresses"; echo UP, > "$NODE/sys/class/net/$name/up"
done
""",
    "systemctl": r"""
case "$*" in
    "is-active --quiet systemd-networkd") exit 0 ;;
    "is-active"*) exit 3 ;;
    "show "*) cat "$NODE/timer" 2>/dev/null || echo inactive; echo inactive ;;
    "restart sparkstack-fabric-undo.timer") echo active > "$NODE/timer" ;;
    "stop sparkstack-fabric-undo.timer") rm -f "$NODE/timer" ;;
    "start sparkstack-fabric-undo.service") sh "$NODE/var/lib/sparkstack/fabric/trial.sh" ;;
esac
""",
    "sleep": "exit 0\n",
    # The node's own paths hang under the folder.
    "sh": r"""
# One good look does: nothing here works on after its tools have ended.
sed -e "s#^PATH=.*#PATH='$PATH'#" -e 's/"\$good" -\(lt\|ge\) 4/"$good" -\1 1/g' -e "s#/\(var/lib\|etc\|sys\)/#$NODE/\1/#g" "$1" > "$NODE/script"
exec /bin/sh "$NODE/script"
""",
}


class FabricNode:
    """The node."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.commands: list[str] = []
        tools = root / "tools"
        tools.mkdir()
        for name, text in TOOLS.items():
            (tools / name).write_text("#!/bin/sh\n" + text)
            (tools / name).chmod(0o755)
        for folder in ("etc/netplan", "etc/systemd/system", "sys/class/net"):
            (root / folder).mkdir(parents=True)
        self.environment = {"PATH": f"{tools}:{os.environ['PATH']}", "NODE": str(root)}

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(" ".join(command))
        # As AnsibleModule.run_command would find it; subprocess itself looks in this process' PATH.
        program = self.root / "tools" / command[0]
        done = subprocess.run([str(program), *command[1:]], env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def link(self, name: str, *addresses: str, mtu: int = 1500, up: bool = True) -> None:
        folder = self.root / "sys/class/net" / name
        folder.mkdir(exist_ok=True)
        (folder / "mtu").write_text(f"{mtu}\n")
        (folder / "up").write_text("UP,\n" if up else "")
        (folder / "addresses").write_text("".join(address + "\n" for address in addresses))

    def kernel(self) -> dict[str, tuple[int, bool, list[str]]]:
        """MTU, whether it is up, and addresses, by interface."""
        return {
            path.name: (int((path / "mtu").read_text()), bool((path / "up").read_text()), sorted((path / "addresses").read_text().split()))
            for path in sorted((self.root / "sys/class/net").iterdir())
        }

    def files(self) -> dict[str, str]:
        """What lies in its folders of settings and of ours: mode and content, without the times in the latter."""
        found = {}
        for folder in ("etc", "var"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file() or path.is_symlink():
                    mode = "link" if path.is_symlink() else f"{path.stat().st_mode & 0o7777:04o}"
                    found[str(path.relative_to(self.root))] = mode
        return found

    def text(self, below: str) -> str:
        return (self.root / below).read_text()

    def write(self, below: str, text: str, mode: int = 0o600) -> None:
        (self.root / below).write_text(text)
        (self.root / below).chmod(mode)


Interfaces = list[dict[str, t.Any]]
