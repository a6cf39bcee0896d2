"""Benchmarks, each a command: figures beside a yardstick that was measured in the same run."""
