"""The paths under /v1."""
