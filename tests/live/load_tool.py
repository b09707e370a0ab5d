"""vLLM's own load tool, kept open in vLLM's environment: each line of standard input is one run of it.

    LABS_VLLM_PYTHON load_tool.py RESULT     each line is a JSON list of its arguments; RESULT gets a line for each

Its command-line entry fails on package metadata in the CPU build, and importing vLLM anew for each run takes long.
"""

from __future__ import annotations

import json
import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
with open(sys.argv[1], "a", encoding="utf-8") as result:
    result.write("{}\n")  # ready
    result.flush()
    for line in sys.stdin:
        done = main(parser.parse_args(json.loads(line)))
        result.write(json.dumps(done, default=str) + "\n")
        result.flush()
