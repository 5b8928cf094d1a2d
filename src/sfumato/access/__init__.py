"""The ways a sampler reaches a vault."""
