"""Processes of this machine, each under a guard of its own."""
