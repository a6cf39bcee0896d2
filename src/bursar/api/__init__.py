"""The HTTP interface: routes, keys, limits. It contains no rules."""
