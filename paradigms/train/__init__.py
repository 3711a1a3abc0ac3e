"""Training: losses over scores, in-batch scoring that fits in memory, negatives and the accelerate loop."""
