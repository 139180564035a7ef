"""How should this PostgreSQL server's memory be used? Answers with evidence."""

from __future__ import annotations

__version__ = "0.1.0"
