# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's half: a process that outlives its module, rsync's own words, and what its documentation says."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import typing as t

import pytest
import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "module_utils"))

from copying import ADDRESS, TOKEN, Node, answers, content, lay, listing, until  # noqa: E402  (the path above must come first)

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_node as node  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils._page_cache import held
from ansible_collections.sparkstack.inference.plugins.modules import model_sync_node as subject  # noqa: E402

START = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_node as node
print(json.dumps(node.begin(json.load(sys.stdin))))
"""


def begin(**params: t.Any) -> dict[str, int]:
    """Start an agent as the module does, in a process that ends at once; :returns: its ports by the address."""
    where = str(pathlib.Path(node.__file__).parents[5])
    done = subprocess.run([sys.executable, "-c", START, where], input=json.dumps(params), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return t.cast("dict[str, int]", json.loads(done.stdout)["ports"])


@pytest.fixture
def params(tmp_path: pathlib.Path) -> dict[str, t.Any]:
    lay(tmp_path / "model")
    return {
        "path": str(tmp_path / "model"),
        "source": True,
        "files": listing(tmp_path / "model"),
        "sum": "sha256",
        "token": TOKEN,
        "streams": 2,
        "callers": [ADDRESS["spark2"]],
        "dry": False,
        "reread": False,
        "certificate": None,
        "private_key": None,
        "chunk": 65536,
        "port": 0,
        "connect_timeout": 2,
        "stall_timeout": 2,
        "addresses": [ADDRESS["spark1"]],
    }


def processes(name: str) -> set[int]:
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if pathlib.Path("/proc", entry, "comm").read_text().strip() == name:
                    found.add(int(entry))
            except OSError:
                continue
    return found


def test_the_agent_outlives_its_module_and_ends_when_told(params: dict[str, t.Any]) -> None:
    before = processes("model-sync")
    ((address, port),) = begin(**params).items()
    (own,) = processes("model-sync") - before
    status = node.told(params["path"], {"do": "watch", "seconds": 0})
    assert (status["state"], status["source"]) == ("serving", True)
    assert answers(address, port) and os.readlink(f"/proc/{own}/cwd") == "/" and TOKEN.encode() not in pathlib.Path(f"/proc/{own}/cmdline").read_bytes()
    assert {os.readlink(f"/proc/{own}/fd/{number}") for number in (0, 1, 2)} == {"/dev/null"}
    assert node.told(params["path"], {"do": "end"})["ended"] is False
    assert node.told(params["path"], {"do": "end", "force": True})["ended"] is True
    until(lambda: not answers(address, port) and own not in processes("model-sync"))
    with pytest.raises(subject.TreeError, match=r"is gone from this node, as after a restart: run this again"):
        node.told(params["path"], {"do": "watch", "seconds": 0})


def test_an_agent_that_is_left_over_gives_way(params: dict[str, t.Any]) -> None:
    first = Node("spark1", pathlib.Path(params["path"]), True, params["files"])
    with pytest.raises(AssertionError, match="runs on this node already: run this again to see it to its end"):
        begin(**params)
    first.agent._started -= agent.YOUNG
    second = begin(**params)
    assert not answers(first.address, first.port) and answers(*next(iter(second.items())))
    node.told(params["path"], {"do": "end", "force": True})


def test_who_is_the_last_of_a_chain_does_not_listen(params: dict[str, t.Any]) -> None:
    assert begin(**{**params, "source": False, "callers": []}) == {}
    assert node.told(params["path"], {"do": "watch", "seconds": 0})["state"] == "waiting"
    node.told(params["path"], {"do": "end", "force": True})


def test_a_name_that_leads_out_of_the_folder_starts_nothing(params: dict[str, t.Any]) -> None:
    entry = {"name": "../../etc/passwd", "size": 1, "mtime_ns": 1, "mine": True, "compare": False}
    with pytest.raises(subject.TreeError, match=r"'\.\./\.\./etc/passwd' is no name of a file in a model's folder"):
        node.begin({**params, "files": [entry]})
    assert agent.ask(params["path"], {"do": "watch", "seconds": 0}) is None


def test_a_link_out_of_the_folder_is_not_written_through(params: dict[str, t.Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "sub").symlink_to(tmp_path)
    with pytest.raises(subject.TreeError, match=r"^sub/config.txt would lie behind a link that leads out of .*/target: remove the link"):
        node.begin({**params, "path": str(tmp_path / "target"), "source": False})


def hidden_link(target: pathlib.Path) -> None:
    (target / state.FOLDER).symlink_to(target.parent / "elsewhere")


@pytest.mark.parametrize("way", ["begin", "rsync"])
@pytest.mark.parametrize(
    ("lay_there", "told"),
    [
        (hidden_link, "/target/.sparkstack-sync is not the folder that a copy makes there for itself: remove it."),
        (lambda target: (target / "model-1.bin").mkdir(), "model-1.bin is a folder in {target}, and a file at the source: remove the folder."),
        (lambda target: (target / "sub").write_text("x"), "{target}/sub is a file here, and a folder at the source: remove the file."),
        (lambda target: (target / "sub").symlink_to("/tmp"), "sub/config.txt would lie behind a link that leads out of {target}: remove the link."),
    ],
)
def test_what_stands_in_the_way_is_told_before_anything_is_touched(
    params: dict[str, t.Any], tmp_path: pathlib.Path, way: str, lay_there: t.Callable[[pathlib.Path], t.Any], told: str
) -> None:
    """A hidden folder that is a link had all that lies elsewhere removed."""
    lay(tmp_path / "elsewhere", {"precious": 9})
    target = tmp_path / "target"
    target.mkdir()
    lay_there(target)
    before = sorted(os.listdir(target))
    with pytest.raises(subject.TreeError) as error:
        if way == "begin":
            node.begin({**params, "path": str(target), "source": False})
        else:
            node.rsync(lambda *_words, **_more: (0, "", ""), "rsync", rsync_params(tmp_path, files=params["files"]))
    assert str(error.value).endswith(told.format(target=target))
    assert os.listdir(tmp_path / "elsewhere") == ["precious"] and sorted(os.listdir(target)) == before


def test_rsync_is_asked_for_no_name_that_leads_out_of_the_folder(tmp_path: pathlib.Path) -> None:
    entry = {"name": "../outside", "size": 1, "mtime_ns": 1, "mine": True, "compare": False}
    with pytest.raises(subject.TreeError, match=r"'\.\./outside' is no name of a file in a model's folder"):
        node.rsync(lambda *_words, **_more: (0, "", ""), "rsync", rsync_params(tmp_path, files=[entry]))


def test_only_files_of_the_folder_are_deleted(tmp_path: pathlib.Path) -> None:
    lay(tmp_path / "model", {"keep.bin": 1, "old/deep/a.bin": 1, "old/b.bin": 1, f"{state.FOLDER}/x.part": 1})
    (tmp_path / "outside").write_text("x")
    model = str(tmp_path / "model")
    with pytest.raises(subject.TreeError, match="is no name of a file"):
        node.settle(model, ["../outside"], [])
    assert node.settle(model, ["old/deep/a.bin", "gone.bin"], []) == ["old/deep/a.bin"]
    # An unfinished file is kept for the next run.
    assert sorted(os.listdir(model)) == [state.FOLDER, "keep.bin", "old"] and os.listdir(f"{model}/old") == ["b.bin"]
    os.unlink(f"{model}/{state.FOLDER}/x.part")
    (tmp_path / "model" / "link").symlink_to(lay(tmp_path / "elsewhere", {"a.bin": 1}))
    assert node.settle(model, ["link/a.bin"], []) == [] and (tmp_path / "elsewhere" / "a.bin").exists()
    os.unlink(f"{model}/link")
    # The same file by another way: what is extra there is the model's own here.
    (tmp_path / "model" / "link").symlink_to("old")
    assert node.settle(model, ["link/b.bin"], []) == [] and os.listdir(f"{model}/old") == ["b.bin"]
    os.unlink(f"{model}/link")
    node.settle(model, ["old/b.bin"], ["keep.bin"])
    assert os.listdir(model) == ["keep.bin"] and (tmp_path / "outside").exists()


SAID = ">f+++++++++ 4998779744 model-00001-of-00039.safetensors\n.f..t...... 1210 config.json\ncd+++++++++ 4096 sub/\n>f.st...... 7 sub/a b.txt\n"


def test_rsyncs_own_words_tell_what_came() -> None:
    assert node.itemized(SAID) == {"moved": ["model-00001-of-00039.safetensors", "sub/a b.txt"], "touched": ["config.json"], "received": 4998779751}
    assert node.itemized("") == {"moved": [], "touched": [], "received": 0}


def rsync_params(tmp_path: pathlib.Path, **more: t.Any) -> dict[str, t.Any]:
    return {
        "path": str(tmp_path / "target"),
        "source": False,
        "files": listing(tmp_path / "source"),
        "reread": False,
        "stall_timeout": 60,
        "rsync_options": [],
        "source_address": "192.168.200.11",
        "source_path": str(tmp_path / "source"),
        **more,
    }


def test_rsync_really_copies_what_it_is_asked_to(tmp_path: pathlib.Path) -> None:
    """The real rsync, which needs no ssh for a folder of this node."""
    lay(tmp_path / "source", {"a.bin": 5000, "sub/b c.bin": 7, "not-asked.bin": 9})
    (tmp_path / "source" / "link.bin").symlink_to("a.bin")
    asked = [entry for entry in listing(tmp_path / "source") if entry["name"] != "not-asked.bin"]

    def local(command: list[str], **given: t.Any) -> tuple[int, str, str]:
        words = [word.replace("192.168.200.11:", "") for word in command if not word.startswith("--rsh")]
        done = subprocess.run(words, input=given.get("data"), capture_output=True, text=True, check=False, pass_fds=given["pass_fds"])
        return done.returncode, done.stdout, done.stderr

    found = node.rsync(local, "rsync", rsync_params(tmp_path, files=asked))
    # What it wrote is on the disk, so that the kernel could give its pages back.
    assert held([str(tmp_path / "target" / name) for name in ("a.bin", "sub/b c.bin")]) == 0
    assert (sorted(found["moved"]), found["received"]) == (["a.bin", "link.bin", "sub/b c.bin"], 10007)
    target = tmp_path / "target"
    assert (target / "sub" / "b c.bin").stat().st_mtime_ns == (tmp_path / "source" / "sub" / "b c.bin").stat().st_mtime_ns
    assert (target / "link.bin").read_bytes() == (tmp_path / "source" / "a.bin").read_bytes() and not (target / "link.bin").is_symlink()
    assert not (target / "not-asked.bin").exists() and (target / "a.bin").stat().st_mode & 0o777 == 0o644
    assert node.rsync(local, "rsync", rsync_params(tmp_path, files=asked)) == {"moved": [], "touched": [], "received": 0}


def test_rsync_is_told_in_one_sentence_what_it_lacks(tmp_path: pathlib.Path) -> None:
    lay(tmp_path / "source", {"a.bin": 5})
    refused = "nvidia@192.168.200.11: Permission denied (publickey).\nrsync: connection unexpectedly closed (0 bytes received so far) [Receiver]\n"
    with pytest.raises(subject.TreeError) as error:
        node.rsync(lambda *_words, **_more: (255, "", refused), "rsync", rsync_params(tmp_path))
    told = "rsync from 192.168.200.11 ended with 255 (nvidia@192.168.200.11: Permission denied (publickey).): see that `ssh 192.168.200.11` works"
    assert str(error.value).startswith(told)
    with pytest.raises(subject.TreeError, match="^rsync is not on this node: install it, or take `transport: fabric`"):
        node.rsync(lambda *_words, **_more: (0, "", ""), None, rsync_params(tmp_path))


def test_what_a_killed_rsync_has_left_goes_and_nothing_unfinished_lies_beside_the_model(tmp_path: pathlib.Path) -> None:
    lay(tmp_path / "source", {"a.bin": 3 << 20})
    target = tmp_path / "target"
    left = lay(target / state.FOLDER / "rsync-now", {".a.bin.Xy12z3": 5}) / ".a.bin.Xy12z3"
    during: list[str] = []
    killed: list[list[str]] = []

    def local(command: list[str], **given: t.Any) -> tuple[int, str, str]:
        words = [word.replace("192.168.200.11:", "") for word in command if not word.startswith("--rsh")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=given["pass_fds"]) as run:
            if "data" not in given:
                return 0, run.communicate()[0], ""
            killed.append(command)
            assert run.stdin is not None and not left.exists()
            run.stdin.write(given["data"])
            run.stdin.close()
            if len(killed) == 1:
                until(lambda: os.listdir(target / state.FOLDER / "rsync-now"))
                # Another task of the same model does not take the files from under this one.
                with pytest.raises(subject.TreeError, match="^An rsync to .*/target runs on this node already: wait for its end"):
                    node.rsync(local, "rsync", rsync_params(tmp_path))
                during.extend(os.listdir(target))
                os.kill(run.pid, signal.SIGKILL)
            run.stdin = None
            out, _err = run.communicate()
            return run.returncode, out, "killed"

    slow = rsync_params(tmp_path, rsync_options=["--bwlimit=500K"])
    with pytest.raises(subject.TreeError, match=r"ended with -9"):
        node.rsync(local, "rsync", slow)
    assert during == [state.FOLDER] and content(target) == {}
    assert node.rsync(local, "rsync", rsync_params(tmp_path))["moved"] == ["a.bin"]
    assert content(target) == content(tmp_path / "source") and not (target / state.FOLDER / "rsync-now").exists()
    assert "--fsync" in killed[-1]


def flat(options: t.Mapping[str, t.Any], inner: str, where: str = "") -> dict[str, tuple[t.Any, ...]]:
    found: dict[str, tuple[t.Any, ...]] = {}
    for name, option in options.items():
        found[where + name] = tuple(option.get(key) for key in ("type", "required", "choices", "elements", "default"))
        found.update(flat(option.get(inner) or {}, inner, f"{where}{name}."))
    return found


def test_the_module_takes_what_it_documents() -> None:
    documented = yaml.safe_load(subject.DOCUMENTATION)["options"]
    assert flat(subject.ARGUMENTS, "options") == flat(documented, "suboptions")


def test_what_is_secret_is_not_logged() -> None:
    assert {name for name, option in subject.ARGUMENTS.items() if option.get("no_log")} == {"token", "private_key"}
