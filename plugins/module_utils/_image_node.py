# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What docker_image_sync has done on a node: what is there, and the node's part in moving an image."""

from __future__ import annotations

import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_agent as agents
from ansible_collections.sparkstack.inference.plugins.module_utils import _image_store as store
from ansible_collections.sparkstack.inference.plugins.module_utils import _leased
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.module_utils._image_agent import ImageAgent
from ansible_collections.sparkstack.inference.plugins.module_utils._image_composed import compose
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import identity, needless, usable_chains, with_tag
from ansible_collections.sparkstack.inference.plugins.module_utils._image_serve import serve
from ansible_collections.sparkstack.inference.plugins.module_utils._image_stream import ArchiveError, blob_filter, load_image, read_image, thin_out
from ansible_collections.sparkstack.inference.plugins.module_utils._image_wire import Otherwise, Outgoing, receive
from ansible_collections.sparkstack.inference.plugins.module_utils._tar_split import SplitError
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import Limits, Request, TransferError, free_port

_REASON = 500
"""Letters of what a receiver's daemon says that the source is told."""

Data = t.Dict[str, t.Any]


class ImageNode:
    """The operations, on the daemon of this node."""

    def __init__(self, params: t.Mapping[str, t.Any]) -> None:
        self.params = params
        self.image: str = params["image"]
        self.limits = Limits(params["connect_timeout"], params["stall_timeout"], params["timeout"])
        # Writing or loading an archive of 20 GB, the daemon may be silent for minutes.
        self.docker = DockerAPI(params["docker_host"], timeout=params["timeout"])
        self.home = agents.home(params["docker_host"], self.image)

    def view(self) -> Data:
        """The image, as far as it is there."""
        found = self.docker.image(self.image)
        if found is None:
            return {"present": False}
        history = self.docker.get("/images/{}/history".format(quote(found["Id"], safe=":")))
        return {
            "present": True,
            "identity": identity(found),
            "id": found["Id"],
            "size": found.get("Size", 0),
            "history": [step.get("Size", 0) for step in history],
        }

    def inspect(self) -> Data:
        """The image, the daemon, what else it has, and what runs."""
        version = self.docker.get("/version")
        known: t.Dict[str, str] = {}
        chains: t.Set[str] = set()
        for inspection, has in self._images(self.docker.get("/info")):
            mark = identity(inspection)
            known[mark["digest"]] = inspection["Id"]
            chains.update(usable_chains(mark["layers"], has))
        try:
            port = free_port(self.params["address"])
        except OSError:
            port = 0
        daemon = {"architecture": version["Arch"], "os": version["Os"], "version": version["Version"]}
        running = _leased.ask(self.home, {"do": "watch", "seconds": 0})
        return dict(self.view(), daemon=daemon, known=known, chains=sorted(chains), free_port=port, running=running)

    def _images(self, info: Data) -> t.Iterator[t.Tuple[Data, t.Optional[t.Dict[str, Data]]]]:
        """Each image's inspection, and which of its layers containerd's store has; None for a graph driver, which has them all."""
        content = store.Content(info) if store.is_containerd(info) else None
        for entry in self.docker.get("/images/json"):
            inspection = self.docker.image(entry["Id"])
            # It can be removed since it was listed.
            if inspection is not None:
                yield inspection, None if content is None else content.held(inspection)

    def tag(self) -> Data:
        """Give a known image the name."""
        repository, tag = with_tag(self.image)
        path = "/images/{}/tag".format(quote(self.params["known_id"], safe=":"))
        self.docker.request("POST", path, {"repo": repository, "tag": tag}).close()
        return self.view()

    def serve(self) -> Data:
        """Have the image served; :returns: how far that is after the seconds that were asked for."""
        return self._begin(True, self._serve)

    def fetch(self) -> Data:
        """Have the image fetched; :returns: the same."""
        return self._begin(False, self._fetch)

    def watch(self) -> Data:
        """Look at what runs, until its state is another one than known; C(status) is None when nothing does."""
        message = {"do": "watch", "seconds": self.params["seconds"], "known": self.params["known"]}
        return {"status": _leased.ask(self.home, message, self.params["seconds"])}

    def _begin(self, source: bool, work: t.Callable[[ImageAgent], Data]) -> Data:
        """:raises TransferError: when a copy of this image runs here."""
        running = _leased.ask(self.home, {"do": "end"})
        if running is not None and not running["ended"]:
            raise TransferError(f"A copy of {self.image} runs on this node already: run this again to see it to its end.")
        try:
            agent = ImageAgent(self.params["docker_host"], self.image, source, work)
        except OSError as error:
            raise TransferError(f"A copy of {self.image} begins on this node already ({error.strerror}): run this again.") from error
        agents.start(agent)
        agent.hand_over()
        return self.watch()

    def _serve(self, _agent: ImageAgent) -> Data:
        reasons: t.List[str] = []
        served = serve(
            self.params["address"],
            self.params["port"],
            self.params["token"],
            self.params["peers"],
            lambda request: self._produce(request, reasons),
            self.limits,
        )
        return {"served": [result._asdict() for result in served], "bytes": sum(result.bytes_sent for result in served), "saved": reasons}

    def _produce(self, request: Request, reasons: t.List[str]) -> Outgoing:
        """The archive for one receiver, of the parts that it lacks. Where Docker's store is not as it is known, of all parts, thinned out on the way."""
        leave_out, have = request.get("leave_out") or [], request.get("have")
        if request.get("save"):
            reasons.append(str(request["save"]))
            return Outgoing(read_image(self.docker, self.image))
        try:
            found = self.docker.image(self.image)
            if found is None:
                raise DockerError(f"No such image: {self.image}")
            size, pieces = compose(store.stored(self.docker.get("/info"), found), self.image, leave_out, have)
            return Outgoing(_parts(pieces), size)
        except (store.Elsewhere, SplitError) as error:
            reasons.append(str(error))
        names = blob_filter([*leave_out, *[entry["digest"] for entry in (have or {}).values()]])
        return Outgoing(thin_out(read_image(self.docker, self.image), names))

    def _fetch(self, agent: ImageAgent) -> Data:
        layers, info = self.params["layers"], self.docker.get("/info")
        request: Request = {"leave_out": needless(layers, self.params["common"]), "have": None}
        if store.is_containerd(info):
            held = {layer: entry for _image, has in self._images(info) for layer, entry in (has or {}).items()}
            request = {"leave_out": [], "have": {layer: held[layer] for layer in layers if layer in held}}
        whole = False
        try:
            self._receive(request, agent, True)
        except (DockerError, Otherwise, ArchiveError) as error:
            if not _worth_another(error):
                raise
            # The daemon can't use what it seemed to have, or a part of the source's store is not what it should be.
            whole = True
            agent.arriving()
            self._receive({"save": str(error)[:_REASON]}, agent, False)
        return dict(self.view(), bytes=agent.count.received, whole=whole)

    def _receive(self, request: Request, agent: ImageAgent, first: bool) -> None:
        def consume(archive: t.Iterator[bytes]) -> None:
            load_image(self.docker, _then(archive, agent.loading), agent.loading)

        receive(
            self.params["source_address"],
            self.params["port"],
            self.params["address"],
            self.params["token"],
            request,
            consume,
            self.limits,
            agent.count,
            lambda error: first and _worth_another(error),
        )


def _worth_another(error: Exception) -> bool:
    """Whether the whole archive may help after this; it doesn't where the disk is full, and where no daemon is."""
    return isinstance(error, (DockerError, Otherwise, ArchiveError)) and not isinstance(error, DockerUnreachable) and "no space left" not in str(error)


def _parts(pieces: t.Iterator[bytes]) -> t.Iterator[bytes]:
    try:
        yield from pieces
    except (SplitError, OSError) as error:
        raise Otherwise(str(error)) from error


def _then(archive: t.Iterator[bytes], call: t.Callable[[], None]) -> t.Iterator[bytes]:
    yield from archive
    call()
