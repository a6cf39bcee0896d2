"""PostgreSQL: stores the books, jobs and pools."""
