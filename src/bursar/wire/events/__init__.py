"""Events of an org as the API lists them and as webhooks receive them.

parts      values of the core with the names and units of the API
settings   the settings that events store
bodies     one model for each kind of event
stream     an event with its place in the stream; the messages of webhooks
"""
