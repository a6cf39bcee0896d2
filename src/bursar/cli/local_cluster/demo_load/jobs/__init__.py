"""What the jobs of a demonstration run: programs of their own, which know nothing of ours."""
