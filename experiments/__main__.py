"""`python -m experiments` is `evo-l2`."""

from experiments.cli import main

main(prog_name="evo-l2")
