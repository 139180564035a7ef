"""Which blocks are in which cache, by relation name: the buffer pool and the page cache, block by block.

`access` opens a server and finds out what may be looked at, `pool` reads the buffer pool, `pagecache` the
operating system's, `names` the catalogs of all databases; `join` puts them together by relation.
"""
