"""HTTP on both sides: the client that calls upstreams, and the server that admits callers."""
