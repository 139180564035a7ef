"""Each kind of result as text, as a page, and as rows for CSV."""
