"""`torchrun -m polyseme.pretraining ARGUMENTS` is `polyseme pretrain ARGUMENTS` in many processes."""

import runpy
import sys

sys.argv[1:1] = ["pretrain"]
runpy.run_module("polyseme.cli", run_name="__main__", alter_sys=True)
