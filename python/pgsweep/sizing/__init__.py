"""How big should shared_buffers be? Predict the misses at other sizes, and prove it on a real server."""
