"""Advice beside a plan: admission, routing, autoscaling and defragmentation."""
