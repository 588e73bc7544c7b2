# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half with the real nodes' half: each host in a thread, with a folder and an address of its own, and its agent in a thread too."""

from __future__ import annotations

import os
import pathlib
import sys
import threading
import types
import typing as t

import pytest
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleConnectionFailure
from ansible.utils.context_objects import CLIArgs

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "module_utils"))

from copying import ADDRESS, CHUNK, MODEL, TOTAL, answers, content, lay, until  # noqa: E402  (the path above must come first)

from ansible_collections.sparkstack.inference.plugins.action import model_sync as subject  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_disk as disk  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.modules import model_sync_node as module  # noqa: E402

BIG = "model-1.bin"


def filled(spec: t.Mapping[str, t.Any], given: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Arguments as Ansible hands them to a module, with those of the inner options."""
    for name in given:
        assert name in spec, name
    found = {name: given.get(name, option.get("default")) for name, option in spec.items()}
    for name, option in spec.items():
        if option.get("options") and found[name]:
            found[name] = [filled(option["options"], entry) for entry in found[name]]
    return found


class Play:
    """All hosts run the task at the same time, as forks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path) -> None:
        monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(folder / "boards"))
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({"forks": 5}))
        self.threads: list[threading.Thread] = []

        def start(one: agent.Agent) -> None:
            thread = threading.Thread(target=one.run, daemon=True)
            thread.start()
            self.threads.append(thread)

        monkeypatch.setattr(agent, "start", start)
        monkeypatch.setattr(agent.Memory, "__init__", self._memory(agent.Memory.__init__, folder))
        self.folder = folder
        self.calls: dict[str, list[dict[str, t.Any]]] = {}
        self.lines: list[str] = []
        self.check_mode = False
        self.tasks = 0
        self.failing: dict[tuple[str, str], list[Exception]] = {}
        """What a host's operation raises instead of being carried out."""
        self.ports: list[tuple[str, int]] = []
        """Where the agents have listened."""

    @staticmethod
    def _memory(made: t.Callable[..., None], folder: pathlib.Path) -> t.Callable[..., None]:
        return lambda self, root, name, chunk, _cache: made(self, root, name, chunk, str(folder / "cache" / pathlib.Path(root).name))

    def start(self, hosts: t.Sequence[str] = ("spark1", "spark2"), **arguments: t.Any) -> t.Callable[[], dict[str, dict[str, t.Any]]]:
        """Begin; what is returned waits for the end and tells the results."""
        self.tasks += 1
        number, results = self.tasks, {}
        own = {host: {key: value[host] for key, value in arguments.items() if isinstance(value, dict)} for host in hosts}
        common = {key: value for key, value in arguments.items() if not isinstance(value, dict)}

        def one(host: str) -> None:
            task = types.SimpleNamespace(_uuid=f"task-{number}", throttle=0, run_once=False, check_mode=self.check_mode, async_val=0, diff=False)
            action = subject.ActionModule.__new__(subject.ActionModule)
            action._task = task
            action._display = types.SimpleNamespace(display=self.lines.append)
            given = {"path": str(self.folder / "spark1"), "dest": str(self.folder / host), "source": "spark1", "addresses": [ADDRESS[host]]}
            given.update({"join_timeout": 20, "connect_timeout": 3, "stall_timeout": 5, "progress": 1, "streams": 3}, **common, **own[host])

            def execute(module_name: str, module_args: dict[str, t.Any], task_vars: object) -> dict[str, t.Any]:
                assert module_name == subject.NODE
                self.calls.setdefault(host, []).append(module_args)
                failing = self.failing.get((host, module_args["operation"]))
                if failing:
                    raise failing.pop(0)
                params = filled(module.ARGUMENTS, {**module_args, "chunk": CHUNK})
                run = types.SimpleNamespace(params=params, check_mode=task.check_mode, run_command=None, get_bin_path=lambda name: None)
                try:
                    found = module.carry_out(t.cast(t.Any, run))
                    self.ports += list(found.get("ports", {}).items())
                    # As ansible-core 2.21 does; before, the latter was not there.
                    return {"changed": False, "failed": False, **found}
                except (module.TreeError, module.TransferError, module.Refused, OSError) as error:
                    return {"failed": True, "msg": str(error)}

            action._execute_module = execute
            action.validate_argument_spec = lambda argument_spec: (None, filled(argument_spec, given))
            try:
                results[host] = action._run({"inventory_hostname": host, "ansible_play_batch": list(hosts)})
            except Exception as error:
                results[host] = {"unreachable": True, "msg": str(error)}

        threads = [threading.Thread(target=one, args=(host,), daemon=True) for host in hosts]
        for thread in threads:
            thread.start()

        def end() -> dict[str, dict[str, t.Any]]:
            for thread in threads:
                thread.join(90)
                assert not thread.is_alive()
            return results

        return end

    def run(self, hosts: t.Sequence[str] = ("spark1", "spark2"), **arguments: t.Any) -> dict[str, dict[str, t.Any]]:
        return self.start(hosts, **arguments)()

    def operations(self, host: str) -> set[str]:
        return {call["operation"] for call in self.calls.get(host, [])}

    def equal(self, host: str) -> bool:
        return content(self.folder / host) == content(self.folder / "spark1")


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> t.Iterator[Play]:
    lay(tmp_path / "spark1")
    made = Play(monkeypatch, tmp_path)
    yield made
    for thread in made.threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_model_comes_once_and_not_again(play: Play) -> None:
    results = play.run()
    done = results["spark2"]
    assert (done.get("failed"), done["changed"], done["verified"], done["bytes_sent"], done["bytes_total"]) == (None, True, True, TOTAL, TOTAL)
    assert done["actions"] == [f"copy {play.folder / 'spark1'} from spark1: 4 files are missing (all), 1.5 MB at most"]
    assert sorted(done["moved"]) == sorted(MODEL) and done["cpu_seconds"] > 0 and done["seconds"] > 0
    assert (results["spark1"]["changed"], results["spark1"]["bytes_sent"], results["spark1"]["actions"]) == (False, TOTAL, [])
    assert play.equal("spark2")
    start = next(call for call in play.calls["spark1"] if call["operation"] == "start")
    assert len(start["token"]) == 64 and start["token"] not in str(results) + str(play.lines)
    assert (start["callers"], start["sum"]) == ([ADDRESS["spark2"]], "gmac")
    assert play.lines[-1].startswith(f"[spark2] model {play.folder / 'spark1'}: 4 files, 1.5 MB in ") and play.lines[-1].endswith(", verified")
    assert not (play.folder / "spark2" / state.FOLDER).exists()

    play.calls.clear()
    again = play.run()
    for host in ("spark1", "spark2"):
        assert (again[host]["changed"], again[host]["bytes_sent"], again[host]["actions"]) == (False, 0, [])
        assert play.operations(host) == {"look"}
    assert again["spark2"]["diff"]["before"] == again["spark2"]["diff"]["after"] == ""


def test_check_mode_says_what_would_move(play: Play) -> None:
    play.check_mode = True
    lay(play.folder / "spark2", {"model-2.bin": 5, "old.bin": 7})
    results = play.run(delete_extra=True)
    told = results["spark2"]
    assert (told["changed"], told["verified"], told["extra"], told["deleted"]) == (True, False, ["old.bin"], ["old.bin"])
    assert told["actions"] == [
        f"copy {play.folder / 'spark1'} from spark1: 3 files are missing, 1 file is not as there (model-2.bin), 1.5 MB at most; delete old.bin"
    ]
    assert "model-2.bin 5\n" in told["diff"]["before"] and f"{BIG} {MODEL[BIG]}\n" in told["diff"]["after"]
    assert play.lines[0].startswith("[spark2] would copy ")
    assert play.operations("spark2") == play.operations("spark1") == {"look"}
    assert sorted(content(play.folder / "spark2")) == ["model-2.bin", "old.bin"]


def test_extra_files_are_told_and_go_on_request_only(play: Play) -> None:
    lay(play.folder / "spark2", {**MODEL, "old/model-9.bin": 7, "more.bin": 3})
    for name in ("spark1", "spark2"):
        (play.folder / name / "sub" / "config.txt").write_bytes(b"the same")
        os.utime(play.folder / name / "sub" / "config.txt", (1, 1))
    (play.folder / "spark2" / ".hidden").write_bytes(b"1")
    kept = play.run()["spark2"]
    assert (kept["changed"], kept["extra"], kept["deleted"]) == (False, ["more.bin", "old/model-9.bin"], [])
    gone = play.run(delete_extra=True)["spark2"]
    assert (gone["changed"], gone["deleted"], gone["bytes_sent"]) == (True, ["more.bin", "old/model-9.bin"], 0)
    assert not (play.folder / "spark2" / "old").exists() and (play.folder / "spark2" / ".hidden").exists()
    assert play.run(delete_extra=True)["spark2"]["changed"] is False


def test_check_mode_and_the_run_agree_on_what_lies_behind_a_link(play: Play) -> None:
    play.run()
    lay(play.folder / "elsewhere", {"theirs.bin": 3})
    (play.folder / "spark2" / "out").symlink_to(play.folder / "elsewhere")
    # The model's own file by another way.
    (play.folder / "spark2" / "again").symlink_to("sub")
    play.check_mode = True
    seen = play.run(delete_extra=True)["spark2"]
    play.check_mode = False
    done = play.run(delete_extra=True)["spark2"]
    for found in (seen, done):
        assert (found["extra"], found["deleted"], found["changed"]) == (["again/config.txt", "out/theirs.bin"], [], False)
    assert (play.folder / "elsewhere" / "theirs.bin").exists() and (play.folder / "spark2" / "sub" / "config.txt").exists()


def test_an_address_may_be_written_in_any_way(play: Play) -> None:
    # Every node of this test calls from the one address that the loopback has.
    results = play.run(addresses=["0:0:0:0:0:0:0:1"])
    assert results["spark2"]["verified"] is True and play.equal("spark2")


def test_a_flip_that_size_and_time_hide_is_found_by_checksum(play: Play) -> None:
    lay(play.folder / "spark2")
    path = play.folder / "spark2" / BIG
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[9 * CHUNK + 1] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert play.run()["spark2"]["changed"] is False
    play.check_mode = True
    told = play.run(checksum=True)["spark2"]
    assert (told["changed"], told["moved"], told["bytes_sent"]) == (True, [BIG], 0)
    assert told["actions"][-1] == f"{BIG} differ by content, 65.5 kB"
    assert path.read_bytes() == data
    play.check_mode = False
    done = play.run(checksum=True)["spark2"]
    assert (done["changed"], done["moved"], done["bytes_sent"], done["verified"]) == (True, [BIG], CHUNK, True)
    assert play.equal("spark2")
    again = play.run(checksum=True)["spark2"]
    assert (again["changed"], again["actions"], again["bytes_sent"]) == (False, [], 0)


def test_equal_files_of_another_time_only_get_the_time(play: Play) -> None:
    lay(play.folder / "spark2")
    os.utime(play.folder / "spark2" / BIG, (1, 1))
    done = play.run()["spark2"]
    assert (done["changed"], done["bytes_sent"], done["moved"]) == (True, 0, [])
    assert done["actions"][-1] == f"set the time of {BIG}, equal by content"
    assert play.run()["spark2"]["changed"] is False


def test_three_nodes_make_a_chain(play: Play) -> None:
    lay(play.folder / "spark3")
    (play.folder / "spark3" / BIG).unlink()
    results = play.run(("spark1", "spark2", "spark3"), tls=True)
    assert play.equal("spark2") and play.equal("spark3")
    assert (results["spark2"]["bytes_sent"], results["spark3"]["bytes_sent"]) == (TOTAL, MODEL[BIG])
    watch = next(call for call in play.calls["spark3"] if call.get("providers"))
    assert [entry["host"] for entry in watch["providers"]] == ["spark2", "spark1"]
    assert all(len(entry["pin"]) == 64 for entry in watch["providers"])
    # Whatever the third wants comes from the second, which gets it too.
    assert results["spark1"]["bytes_sent"] == TOTAL


def gated(monkeypatch: pytest.MonkeyPatch, after: int) -> threading.Event:
    """The source gives so many chunks, and the others when the event is set."""
    gate, read, given = threading.Event(), disk.Plain.read, []

    def slow(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        if "/spark1/" in self.path:
            given.append(offset)
            if len(given) > after:
                assert gate.wait(60)
        read(self, buffer, offset, length)

    monkeypatch.setattr(disk.Plain, "read", slow)
    return gate


def test_a_second_run_sees_the_first_ones_copy_to_its_end(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated(monkeypatch, 12)
    first = play.start()
    until(lambda: any(" of 1.5 MB" in line for line in play.lines))
    second = play.start()
    until(lambda: any("this run sees it to its end" in line for line in play.lines))
    gate.set()
    assert first()["spark2"]["changed"] is True
    seen = second()["spark2"]
    assert (seen.get("failed"), seen["changed"], seen["bytes_sent"], seen["verified"]) == (None, False, 0, True)
    assert len(seen["actions"]) == 1 and seen["actions"][0].startswith("waited for a copy that ran already, since ")
    assert play.equal("spark2")


def test_when_the_first_controller_is_gone_the_second_keeps_the_copy_alive(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated(monkeypatch, 12)
    # The first run's threads end as a controller does that is killed: without a word to the nodes.
    play.failing[("spark1", "watch")] = [KeyboardInterrupt()] * 2  # type: ignore[list-item]
    first = play.start()
    until(lambda: any(" of 1.5 MB" in line for line in play.lines))
    play.failing.clear()
    second = play.start()
    until(lambda: any("this run sees it to its end" in line for line in play.lines))
    gate.set()
    seen = second()
    assert seen["spark2"]["verified"] is True and play.equal("spark2")
    del first


def test_forks_that_go_on_when_ansible_was_killed_end_the_copy(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated(monkeypatch, 12)
    running = play.start()
    until(lambda: any(" of 1.5 MB" in line for line in play.lines))
    monkeypatch.setattr(subject.os, "getppid", lambda: 1)
    results = running()
    gate.set()
    # The source's has seen the other end, or the same.
    assert results["spark2"]["msg"] == f"Ansible is gone: run this again, what has arrived of {play.folder / 'spark1'} is not sent twice."
    assert not any(answers(address, port) for address, port in play.ports)
    assert BIG not in content(play.folder / "spark2")


def test_a_node_out_of_sshs_reach_for_a_moment_does_not_end_its_copy(play: Play) -> None:
    play.failing[("spark2", "watch")] = [AnsibleConnectionFailure("ssh: connection timed out")]
    done = play.run()["spark2"]
    assert done["verified"] is True and play.equal("spark2")


def test_a_node_that_refuses_ssh_at_once_is_not_asked_without_pause(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_AWAY", 2.5)
    play.failing[("spark2", "watch")] = [AnsibleConnectionFailure("ssh: connect to host: Connection refused") for _turn in range(1000)]
    results = play.run()
    assert results["spark2"]["unreachable"] is True
    assert 2 <= len([call for call in play.calls["spark2"] if call["operation"] == "watch"]) <= 5


@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_a_node_that_is_unreachable_is_not_waited_for(play: Play, host: str) -> None:
    play.failing[(host, "look")] = [AnsibleConnectionFailure("ssh: no route to host")]
    results = play.run()
    assert results[host] == {"unreachable": True, "msg": "ssh: no route to host"}
    if host == "spark1":
        told = f"spark1 is the source of the model {play.folder / 'spark1'} and failed: ssh: no route to host"
        assert results["spark2"]["msg"] == told
    else:
        assert results["spark1"]["changed"] is False and not results["spark1"].get("failed")
    assert not (play.folder / "spark2").exists()


def test_bad_input_is_one_sentence_before_anything_is_touched(play: Play) -> None:
    source = str(play.folder / "spark1")
    nowhere = play.run(path=str(play.folder / "nowhere"))
    assert nowhere["spark1"]["msg"] == f"The model's folder {play.folder / 'nowhere'} is not there."
    assert nowhere["spark2"]["msg"].startswith(f"spark1 is the source of the model {play.folder / 'nowhere'} and failed: The model's folder")
    stray = play.run(addresses={"spark1": ["192.0.2.7"], "spark2": [ADDRESS["spark2"]]})
    assert stray["spark1"]["msg"] == "192.0.2.7 is not an address of this node: give the node's own address on the fabric."
    assert "The source spark9 does not take part" in play.run(source="spark9")["spark2"]["msg"]
    assert "spark1 has no address on the fabric" in play.run(addresses=[])["spark1"]["msg"]
    relative = play.run(dest="models/x")
    assert relative["spark2"]["msg"] == "The model's path 'models/x' is not absolute: give the folder's full path."
    (play.folder / "file").write_text("x")
    assert play.run(dest=str(play.folder / "file"))["spark2"]["msg"] == f"{play.folder / 'file'} is not a folder: give the model's folder."
    (play.folder / "spark1" / "dangling").symlink_to("nothing")
    told = f"dangling in {source} leads nowhere: copy there what the link points to, or download the model again."
    assert play.run()["spark1"]["msg"] == told
    assert not (play.folder / "spark2").exists()


def test_no_room_is_told_with_how_much_is_missing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = sys.modules[module.TreeError.__module__]
    monkeypatch.setattr(tree, "_room", lambda path: {"free": 1_000_000, "writable": True, "parent": "/srv"})
    told = f"spark2 has 1.0 MB free where the model {play.folder / 'spark1'} is to lie, and 1.5 MB are to come: free 507.4 kB there."
    assert play.run()["spark2"]["msg"] == told
    monkeypatch.setattr(tree, "_room", lambda path: {"free": 1 << 40, "writable": False, "parent": "/srv"})
    told = f"spark2 can't write to /srv, where the model {play.folder / 'spark1'} is to lie: mount it writable, or let this task run with `become`."
    assert play.run()["spark2"]["msg"] == told
    assert not (play.folder / "spark2").exists()


def test_a_taken_port_is_the_sources_failure_and_the_receivers(play: Play) -> None:
    import socket

    with socket.create_server((ADDRESS["spark1"], 0)) as taken:
        port = taken.getsockname()[1]
        results = play.run(port={"spark1": port, "spark2": 0})
    sentence = f"Port {port} of 127.0.0.2 is taken: run this again, or set another one with the option `port`."
    assert results["spark1"]["msg"] == sentence
    assert results["spark2"]["msg"] == f"spark1 could not serve the model {play.folder / 'spark1'}: {sentence}"


def test_a_source_that_changes_meanwhile_fails_both(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gated(monkeypatch, 5)
    running = play.start()
    until(lambda: any(" of 1.5 MB" in line for line in play.lines))
    (play.folder / "spark1" / BIG).write_bytes(b"other")
    gate.set()
    results = running()
    assert f"{BIG} changed at the source while it was copied" in results["spark2"]["msg"]
    assert results["spark1"]["msg"].startswith(f"{BIG} in {play.folder / 'spark1'} changed on spark1 while it was copied")
    assert BIG not in content(play.folder / "spark2")


def test_nothing_listens_afterwards(play: Play) -> None:
    play.run(("spark1", "spark2", "spark3"))
    # The last one of the chain never did.
    assert len(play.ports) == 2
    for address, port in play.ports:
        assert not answers(address, port)


def test_a_task_that_can_not_run_on_all_nodes_at_once_is_told(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"forks": 1}))
    assert "The task runs on 2 nodes at once: set `forks` of Ansible to at least 2 (it is 1)." in play.run()["spark1"]["msg"]
