# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is said of a download from a hub that didn't work: one sentence with what to do. Pure."""

from __future__ import annotations

import typing as t

_AGAIN = "What has come is kept, and the next run goes on from there."
SENTENCES = {
    "library": "{python} has no huggingface_hub of version 0.34 or later ({detail}): give a Python that has it, as the role model_staging makes one.",
    "gated": "{hub} lets only those read {repo} who have accepted its conditions: accept them on its page, and give the token of that account.",
    "repository": "{hub} has no repository {repo}{for_token}: look at its name{token_remedy}.",
    "revision": "{repo} has no revision {revision} on {hub}: give a branch, a tag or a commit that is there.",
    "denied": "{hub} refuses to give {repo} ({detail}): give a token that may read it.",
    "answered": "{hub} did not give {repo} ({detail}): look whether it is a model hub and in order, and run this again. {again}",
    "unreachable": "{hub} can't be reached from this node ({detail}): look at its network and proxy, or set endpoint to a mirror that it reaches. {again}",
    "space": "The disk is full ({detail}): make room. {again}",
    "disk": "The disk of this node refuses ({detail}): look at it and at the folder's rights. {again}",
    "stalled": "Nothing has come from {hub} for {stall} s ({detail}): run this again{xet_remedy}. {again}",
    "timeout": "The download has not ended within {timeout} s ({detail}): run this again, with a larger timeout. {again}",
    "content": "{hub} has twice given {detail} with another content than its hash says: try another mirror, or later. {again}",
    "other": "The download of {repo} broke off: {detail}. Run this again. {again}",
}


def sentence(word: str, detail: str, params: t.Mapping[str, t.Any]) -> str:
    """:param word: what the program that asks the hub says is wrong, a key of SENTENCES. :param params: the module's."""
    token = bool(params["token"])
    return SENTENCES.get(word, SENTENCES["other"]).format(
        detail=detail.rstrip("."),
        python=params["python"],
        hub=params["endpoint"] or "The hub",
        repo=params["repo"],
        revision=params["revision"],
        stall=params["stall_timeout"],
        timeout=params["timeout"],
        for_token=", or none that this token may read" if token else ", or none that is read without a token",
        token_remedy="" if token else ", and give a token where it is private",
        xet_remedy=", without xet where it stalls once more" if params["xet"] else "",
        again=_AGAIN,
    )
