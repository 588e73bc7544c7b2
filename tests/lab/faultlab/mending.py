# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows of the matrix: a fault made on a serving deployment, and what one run of the deploy playbook is to do about it.

Their order spares starts: each takes about a minute, and what one row leaves serving the next one begins with.
"""

from __future__ import annotations

import pathlib
import re
import typing as t
from dataclasses import dataclass

import play

from . import deploying, makers, points
from .engines import HEAD, NODES, WORKER
from .launch import Missed
from .scene import ORIGINAL, UPGRADE, Scene, meanwhile, shard

NOTHING, RESTARTED, WATCHED, REFUSED, WENT_BACK = "nothing", "restarted", "watched", "refused", "went back"


@dataclass(frozen=True)
class Fault:
    """A row."""

    name: str
    make: t.Callable[[Scene], object]
    does: str
    """What one run is to do; after a refusal, and after going back, the deployment that served before serves."""
    says: str = ""
    """What it is to say, as a pattern over its output without line breaks."""
    undo: t.Callable[[Scene], object] = lambda _scene: None
    """Takes it away: after a refusal before the second run, else at the end."""
    before: str = ""
    """The state before, where it can't be looked at."""
    run: t.Callable[[Scene], play.Play] = lambda scene: scene.deploy()
    """The one run."""
    then: t.Callable[[Scene], object] = lambda _scene: None
    """What comes before the second run: of a fault that the run could not mend, only go round."""


def rank(node: str, words: str) -> t.Callable[[Scene], None]:
    """Docker's words for a node's rank, behind the collection's back."""
    return lambda _scene: makers.void(play.node(node, f"docker {words} {play.RANKS[node]}"))


def reboot(*nodes: str) -> t.Callable[[Scene], None]:
    """All of them at the same time, in good order."""
    return lambda _scene: makers.together(lambda node: play.lab("reboot", node), nodes)


# The recipe.


def harmless(scene: Scene) -> None:
    """Nothing that a container is made of."""
    scene.data["description"] = "Two sparks, told in other words."
    scene.data["proof"] = {"prompt": "Seven times six is"}
    turn(scene)


def turn(scene: Scene) -> None:
    """The arguments in the opposite order."""
    part = scene.data["engines"]["vllm"]
    part["arguments"] = dict(reversed(part["arguments"].items()))


def plain(scene: Scene) -> None:
    """Those fields as they were."""
    for key in ("description", "proof"):
        scene.data.pop(key, None)
    turn(scene)


def length(scene: Scene) -> None:
    """The context length; what would be done is predicted first, and nothing is touched by that."""
    before, after = scene.other_length()
    marks = scene.marks()
    predicted = scene.deploy("--check", "--diff")
    told = f"max-model-len: {before} -> {after}" in predicted.text and all(predicted.changed.values())
    if predicted.code or not told or deploying.action(predicted) != "all ranks restarted":
        raise Missed(f"check mode did not predict the change: {deploying.seen(predicted, 'predicted')}")
    if scene.marks() != marks:
        raise Missed("check mode has touched the ranks")


def unknown_option(scene: Scene) -> None:
    """A slip."""
    scene.argument("max-num-seqz", 8)


def image(scene: Scene) -> None:
    """Another name, which has other content than the name before has now."""
    makers.other_image(HEAD, ORIGINAL, UPGRADE)
    scene.image = scene.data["engines"]["vllm"]["image"] = UPGRADE


def image_back(scene: Scene) -> None:
    """The recipe's own name again, later; its content is the original's."""
    for node in NODES:
        play.node(node, f"docker tag {ORIGINAL} sparkstack/vllm-cpu:0.32.0")


def moved(scene: Scene) -> None:
    """The name of the image is given to other content on the head."""
    makers.other_image(HEAD, ORIGINAL, scene.image)


# Nodes and networks.


def cut_and_heal(scene: Scene) -> None:
    """The fabric's cable is out for some seconds while a request is being answered."""
    play.lab("cut", WORKER)
    asked = meanwhile(lambda: scene.answers(90))
    # The request hangs: nothing can answer it before the cable is back.
    for _turn in range(5):
        if asked.done() or scene.answers(1):
            raise Missed("the head answers although the fabric is cut")
    play.lab("heal", WORKER)
    if not asked.result(120):
        raise Missed("the request that hung was not answered after the cable was back")


def full_disk(*nodes: str) -> t.Callable[[Scene], None]:
    """No room for a record, or a lock."""
    return lambda _scene: makers.together(makers.fill_disk, nodes)


def room(scene: Scene) -> None:
    """There is room again."""
    makers.together(makers.empty_disk, NODES)


def record_later(scene: Scene) -> None:
    """There is room, and a run keeps the record that had none."""
    room(scene)
    run = scene.deploy()
    if run.code or deploying.action(run) != "nothing" or not run.changed.get(WORKER):
        raise Missed(f"with room on the disk the record was not kept: {deploying.seen(run, 'record-later')}")


def upgrade(scene: Scene) -> None:
    """An upgrade that passes every check and comes to nothing: the model has no more than 2048 positions."""
    scene.argument("max-model-len", 4096)
    scene.extra["tp_launch_rollback"] = True


# Runs of their own.


def two_runs(scene: Scene) -> play.Play:
    """Another run while one works: it is refused, and the first one ends well."""
    with deploying.Background(scene.values(), "two runs at once, the first") as first:
        first.wait(r"^PLAY \[Prepare\]", 120)
        second = scene.deploy()
        sentence = (
            rf"{play.DEPLOYMENT} is being worked on by \S+ at \S+ \(pid \d+\) since \S+Z: "
            "wait for it, or set tp_launch_break_lock to true if that run is gone"
        )
        if second.code == 0 or not re.search(sentence, second.text) or any(second.changed.values()):
            raise Missed(f"the second run was not refused as it should be: {deploying.seen(second, 'second')}")
        return first.end(400)


def roll_back(scene: Scene) -> play.Play:
    """The playbook that goes back; then that recipe is the one that is wanted."""
    if scene.previous is None:
        scene.other_length()
        run = scene.deploy()
        if run.code:
            raise Missed(f"there is nothing to go back to: {deploying.seen(run, 'before-rollback')}")
    run = play.playbook("playbooks/rollback.yml", extra=scene.values())
    assert scene.previous is not None
    scene.data, scene.previous = scene.previous, scene.data
    return run


def steps(*parts: t.Callable[[Scene], object]) -> t.Callable[[Scene], None]:
    """One after the other."""
    return lambda scene: makers.void([part(scene) for part in parts])


RESTART_OF = "was started again alone|was started after the head, so alone|has ended"

FAULTS = (
    Fault("nothing wrong", lambda _scene: None, NOTHING, "all ranks run as wanted and the head answered a request"),
    Fault("recipe changed in harmless fields", harmless, NOTHING, "Seven times six is", undo=plain),
    Fault("recipe changed in an unknown option", unknown_option, REFUSED, "--max-num-seqz is not an option of vLLM"),
    Fault(
        "model file damaged at rest on the worker",
        lambda scene: makers.halve(WORKER, shard(scene)),
        REFUSED,
        r"spark2: .*model-00002-of-00003",
        undo=lambda scene: makers.mend(WORKER, shard(scene)),
    ),
    Fault("fabric cut and healed while serving", cut_and_heal, NOTHING),
    Fault(
        "worker unreachable",
        lambda _scene: play.lab("isolate", WORKER),
        REFUSED,
        r"spark2 can't be reached .*: what runs there is unknown, so nothing was touched",
        undo=lambda _scene: play.lab("rejoin", WORKER),
        before="rank 0 runs, rank 1 unknown",
    ),
    Fault(
        "disk full on the head, argument changed",
        steps(lambda scene: scene.other_length(), full_disk(HEAD)),
        REFUSED,
        "can't be used: No space left on device",
        undo=room,
    ),
    Fault("worker's rank killed (SIGKILL)", rank(WORKER, "kill --signal KILL"), RESTARTED, r"rank 1 on spark2 has ended \(exit code 137\)"),
    Fault("head's rank killed (SIGKILL)", rank(HEAD, "kill --signal KILL"), RESTARTED, r"rank 0 on spark1 has ended \(exit code 137\)"),
    Fault("docker restart of the worker's rank", rank(WORKER, "restart -t 1"), RESTARTED, RESTART_OF),
    Fault("docker restart of the head's rank", rank(HEAD, "restart -t 1"), RESTARTED, RESTART_OF),
    Fault(
        "disk full on the worker, container removed",
        steps(rank(WORKER, "rm -f"), full_disk(WORKER)),
        RESTARTED,
        "rank 1 is missing on spark2 .*The record of launch .* could not be kept",
        undo=room,
        then=record_later,
    ),
    Fault(
        "Docker restarted on the worker",
        lambda _scene: play.node(WORKER, "systemctl restart docker"),
        RESTARTED,
        "rank 1 on spark2 has ended .lost when Docker was restarted at",
    ),
    Fault("worker's node rebooted", reboot(WORKER), RESTARTED, r"rank 1 on spark2 has ended \(lost when its node was rebooted at"),
    Fault("head's node rebooted", reboot(HEAD), RESTARTED, r"rank 0 on spark1 has ended \(lost when its node was rebooted at"),
    Fault("both nodes rebooted", reboot(*NODES), RESTARTED, r"rank 0 on spark1 has ended \(lost when .* rank 1 on spark2 has ended \(lost when"),
    Fault("container removed, two runs at once", rank(WORKER, "rm -f"), RESTARTED, "rank 1 is missing on spark2", run=two_runs),
    Fault(
        "controller killed after the plan",
        points.killed("after the plan", rank(WORKER, "rm -f"), r"^PLAY \[Prepare\]", points.at_plan),
        RESTARTED,
        "rank 1 is missing on spark2",
    ),
    Fault(
        "controller killed when the workers run",
        points.killed("when the workers run", rank(HEAD, "rm -f"), r"^TASK \[.*Start the head\]", points.at_workers),
        RESTARTED,
        "rank 0 is missing on spark1",
    ),
    Fault("controller killed while it watches", points.killed("while it watches", rank(HEAD, "rm -f"), r"^\[spark2\] 1/9", points.at_watch), WATCHED),
    Fault("controller killed before the record", points.killed("before the record", rank(HEAD, "rm -f"), "tiny at http", points.at_record), WATCHED),
    Fault("image tag moved on the head", moved, RESTARTED, r"was started with something else \(image"),
    Fault(
        "controller killed while the image goes",
        points.killed("while the image goes", points.slow_image, r"^TASK \[.*image_sync : Bring the image to every node\]", points.at_image, points.coming),
        RESTARTED,
        r"was started with something else \(image",
        undo=points.fast_again,
    ),
    Fault("recipe changed in the image", image, RESTARTED, r"was started with something else \(image", undo=image_back),
    Fault("recipe changed in an argument", length, RESTARTED, r"was started with something else \(--max-model-len: \d+ -> \d+"),
    Fault("upgrade fails, rollback asked for", upgrade, WENT_BACK, "The launch before it, .*, was brought back and serves"),
    Fault("rollback", lambda _scene: None, RESTARTED, "Going back to launch .* of tiny-qwen3-moe, which answered", run=roll_back),
)


def log_of(name: str) -> pathlib.Path:
    """Where the output of a row's run is kept."""
    return deploying.FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.txt"
