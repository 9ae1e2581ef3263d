"""`python -m polyseme.cli`: the same as the command `polyseme`."""

from polyseme.cli import main

main(prog_name="polyseme")
