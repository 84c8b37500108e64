"""Who is calling? Tokens, keys, listeners and chains, honest and forged."""
