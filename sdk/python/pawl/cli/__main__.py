"""`python -m pawl.cli` is `pawl`."""

from pawl.cli.main import main

main(prog_name="pawl")
