# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Not SGLang: the name under which the lab's rehearsal engine is started, by SGLang's own command line.

SGLang does not run without a GPU. The program behind this name is ours (see the package rehearsal): it reads SGLang's
options, forms a group with its peers over the network, reads the model's files, takes memory and serves, and says what it
does in the words of SGLang's log. It computes no model.
"""

from .version import __version__ as __version__
