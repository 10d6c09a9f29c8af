"""What every world shares: the timeline, randomness, network, disk, trace. It knows no protocol."""
