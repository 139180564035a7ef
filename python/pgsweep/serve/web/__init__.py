"""The pages, data and events of `pgsweep serve` over HTTP; it sees records only."""
