# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts one node of the rehearsal: python3 -m sglang.launch_server --model-path FOLDER --tp-size 2 --nnodes 2 ..."""

from rehearsal import launcher

if __name__ == "__main__":
    launcher.main()
