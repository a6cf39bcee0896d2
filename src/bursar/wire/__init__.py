"""What crosses a process: requests, answers, problems. Shapes only; no rule of the domain."""
