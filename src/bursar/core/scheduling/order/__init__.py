"""Which waiting job comes next: fair share, aging, express starts and ceilings."""
