"""`python -m bursar`: the command line."""

from bursar.cli import main

main()
