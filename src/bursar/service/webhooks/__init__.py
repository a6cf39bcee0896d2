"""Alerts and webhooks: raising, signing and delivering them."""
