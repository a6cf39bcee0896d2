"""The commands of the ledger, a module for each noun."""
