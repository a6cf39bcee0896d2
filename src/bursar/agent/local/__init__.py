"""The backend for processes of this machine: each has a guard process."""
