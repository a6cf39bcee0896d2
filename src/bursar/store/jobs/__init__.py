"""Rows of an org's jobs: jobs, arrays, shared results, routes and the outbox."""
