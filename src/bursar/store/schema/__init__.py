"""The database schema: `tables/` is version 1, `migrations/` holds the versions after it.

Until the first release, change the files in `tables/`. From then on they stay as they are, and each
change is a numbered file in `migrations/` (see its README).
"""
