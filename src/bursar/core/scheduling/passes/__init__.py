"""One planning pass, step by step: earmarked jobs, aged jobs, express jobs, turns, urgent jobs."""
