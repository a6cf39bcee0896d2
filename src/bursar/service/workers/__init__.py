"""Background work of a process: the relay, the sweeper and their life cycle."""
