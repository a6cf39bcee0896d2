"""The ledger as a service: batches of commands, one transaction each."""
