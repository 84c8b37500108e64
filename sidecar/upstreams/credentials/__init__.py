"""Credentials that upstreams receive.

source.py           the interface, a header that never changes, and the caller's own token passed through
token_cache.py      caches tokens from other issuers: renewed in advance, fetched once for all waiting callers
token_endpoint.py   one request to a token endpoint, and its strictly checked response
token_exchange.py   a token for the sidecar (client credentials), a token for each caller (token exchange)
signed_tokens.py    a token that the sidecar signs, naming the chain; the signing key and its public key set
from_settings.py    chooses one of these by the settings
"""
