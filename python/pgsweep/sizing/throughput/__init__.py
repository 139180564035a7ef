"""What reads make of the throughput: the measured loop, queueing, the device."""
