"""What is inferred from what: a model, its domain and the bounds that hold there."""
