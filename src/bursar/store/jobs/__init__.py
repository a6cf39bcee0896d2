"""An org's jobs as rows: jobs, arrays, shared results, routes and the outbox."""
