"""Types of requests, responses and problems. No rules of the domain."""
