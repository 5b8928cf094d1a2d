"""The private side: the one package that sees records. Everything that leaves it is noisy and was paid for."""
