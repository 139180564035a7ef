"""What is in which cache? The pool and the page cache, relation by relation, once and live."""
