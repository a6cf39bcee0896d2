"""Rows of an org's books: loading, writing, pages, statements and usage."""
