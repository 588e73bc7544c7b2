# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No engine: the option names of SGLang's launcher and nothing else, for the lab.

SGLang does not run on a CPU without its GPU kernels. This package stands in an image of its own so that the lab can prove
one thing: that a deployment's flags are checked against the option parser of the very image that will run.
"""

from .version import __version__ as __version__
