"""What views are made of: tables, charts, pages, and the terminal."""
