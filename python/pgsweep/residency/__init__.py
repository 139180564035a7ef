"""Who is in which cache: the buffer pool and the page cache, looked at block by block, and their names.

`access` opens a server and finds out what may be looked at, `pool` reads the buffer pool, `pagecache` the
operating system's, `names` the catalogs of all databases; `join` puts them together by relation.
"""
