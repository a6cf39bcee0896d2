"""Reads of orgs: balances, entities, history, statements, usage and top lists."""
