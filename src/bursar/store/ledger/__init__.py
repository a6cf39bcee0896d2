"""An org's books as rows: loading, writing, pages, statements and usage."""
