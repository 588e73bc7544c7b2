# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the options of the lab's SGLang stand-in; it checks a command line and then says that there is no engine."""

import argparse
import sys

from sglang.srt.server_args import ServerArgs

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    parser.parse_args()
    sys.exit("This image holds SGLang's option names only, there is no engine in it: use the vllm-cpu image in the lab.")
