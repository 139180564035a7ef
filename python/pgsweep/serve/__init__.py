"""What servers do now and did before, on pages in a browser and as metrics: `pgsweep serve`."""
