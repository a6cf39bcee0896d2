"""Which running jobs make room: rights, victims, shortfall and migration."""
