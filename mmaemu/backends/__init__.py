"""Who computes the accumulators: one interface, several implementations with the same bits."""
