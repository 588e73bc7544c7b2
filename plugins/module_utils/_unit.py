# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The node's half of a module that has a program of the collection's own run by systemd: what is new is written, the rest is left."""

from __future__ import annotations

import base64
import contextlib
import os
import typing as t
import zlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import Data, Kind


class Refused(Exception):
    """The text is a sentence for the user."""


class Entry(t.NamedTuple):
    """A file that is wanted."""

    key: str
    """C(program), C(unit) or C(settings)."""
    below: str
    """Its path under the root."""
    content: t.Union[str, bytes]
    known: t.Any
    """What it is compared by, and shown as."""
    mode: int


class Unit:
    """One deployment's unit on this node. A subclass says what is to be done; nothing is done in check mode."""

    def __init__(self, module: AnsibleModule, kind: Kind, name: str, root: str = "/") -> None:
        """:param name: the unit's, of this deployment. :param root: where the node's files hang."""
        self.module, self.kind, self.name, self.root = module, kind, name, root
        self.deployment: str = module.params["deployment"]
        self.actions: t.List[str] = []
        self.changed: t.List[Entry] = []
        self.before: Data = {}
        """What is there, by an entry's key; empty where this deployment has no unit."""
        self.after: Data = {}

    def path(self, below: str) -> str:
        """Where a path under the root is."""
        return os.path.join(self.root, below)

    def need_python(self) -> None:
        """:raises Refused: where the node lacks what runs the program."""
        if not os.path.exists(self.path(_unit_files.PYTHON.lstrip("/"))):
            raise Refused("This node has no {0}, which {1} needs: install python3.".format(_unit_files.PYTHON, self.kind.what))

    def no_systemd(self) -> Refused:
        """What is said where the node has none."""
        return Refused("This node has no systemd, which {0} needs: set {1} to false.".format(self.kind.what, self.kind.variable))

    def systemctl(self, *words: str) -> None:
        """:raises Refused: when it fails, with what it said and :meth:`hint`."""
        path = self.module.get_bin_path("systemctl")
        if not path:
            raise self.no_systemd()
        rc, stdout, stderr = self.module.run_command([path, *words])
        if rc != 0:
            told = " ".join((stderr or stdout).split())
            raise Refused("systemctl {0} failed: {1}{2}".format(" ".join(words), told, self.hint(words[0])))

    def hint(self, word: str) -> str:
        """What else is said when systemctl fails, with a blank before it. :param word: what it was to do."""
        return ""

    def program(self) -> bytes:
        """The program that the controller has sent; :raises Refused: where none came."""
        packed = self.module.params["program"]
        if not packed:
            raise Refused("The program is missing: run the module as a task, whose controller brings it.")
        return zlib.decompress(base64.b64decode(packed))

    def want(self, program: bytes, unit_text: str, settings: Entry, **state: bool) -> None:
        """Compare what is wanted with what is there: the difference is C(changed), and its writing the first of the C(actions).

        :param settings: the deployment's own file. :param state: what else is compared, such as C(runs).
        """
        wanted = [
            Entry("program", self.kind.program, program, _unit_files.digest(program), 0o644),
            Entry("unit", self.kind.unit_file, unit_text, _unit_files.digest(unit_text.encode()), 0o644),
            settings,
        ]
        self.after = dict({entry.key: entry.known for entry in wanted}, **state)
        self.changed = [entry for entry in wanted if self.before.get(entry.key) != entry.known]
        self.actions = ["write /{0}".format(entry.below) for entry in self.changed]

    def write(self) -> None:
        """Write what is new, each file in one step."""
        for entry in self.changed:
            _unit_files.write(self.path(entry.below), entry.content, entry.mode)

    def is_new(self, key: str) -> bool:
        """That entry is among what is new."""
        return key in [entry.key for entry in self.changed]

    def there(self, paths: t.Iterable[str]) -> t.List[str]:
        """Those that there are."""
        return [below for below in paths if os.path.lexists(self.path(below))]

    def take_away(self, own: t.Sequence[str], shared: t.Sequence[str], end: t.Tuple[str, t.Sequence[str]], folders: t.Optional[t.Sequence[str]]) -> None:
        """Stop the unit, and remove what there is of these paths.

        :param own: where one of them is there, the stop is told. :param shared: what else goes.
        :param end: the words for the stop, and systemctl's for it.
        :param folders: those to remove where nothing else is in them, with the last deployment's unit; None where others have one yet.
        """
        mine = self.there(own)
        leftover = mine + self.there(shared)
        self.actions = ["{0} {1}".format(end[0], self.name)] if mine else []
        self.actions += ["remove /{0}".format(below) for below in leftover]
        if self.module.check_mode or not leftover:
            return
        if os.path.exists(self.path(self.kind.unit_file)):
            self.systemctl(*end[1], self.name)
        for below in leftover:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(below))
        if folders is not None:
            for folder in folders:
                with contextlib.suppress(OSError):
                    os.rmdir(self.path(folder))
            self.systemctl("daemon-reload")


@contextlib.contextmanager
def failing(module: AnsibleModule) -> t.Iterator[None]:
    """Have the module fail in one sentence, whatever is in the way."""
    try:
        yield
    except (Refused, DockerError, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="{0} can't be written: {1}. Run this as root (become).".format(error.filename, error.strerror))
