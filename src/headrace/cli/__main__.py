"""`python -m headrace.cli`: the command without its entry point."""

from headrace.cli import main

main()
