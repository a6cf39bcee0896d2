"""Why a job waits, was placed or was preempted, in figures and in words."""
