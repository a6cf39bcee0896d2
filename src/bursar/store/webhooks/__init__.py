"""Rows of alerts and webhook deliveries."""
