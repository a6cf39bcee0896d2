"""The HTTP interface: routes, keys, limits. It translates; what is decided, is decided below."""
