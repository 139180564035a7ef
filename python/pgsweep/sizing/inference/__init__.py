"""Infer rates of pages and the curve of misses over sizes from evidence.

Everything here is arithmetic on arrays: no files, no SQL. The order of reading:

    observations  snapshots of the pool -> how often each page was seen at each usage_count
    rates         observations -> how many pages are visited how often (the clock's law inverted)
    curve         rates -> resident pages, misses and the clock pass at every other size
    snapshots     the three in a row, with intervals and a verdict
    accesses      a trace -> visits, rates, and a warm pool to replay the trace into
"""
