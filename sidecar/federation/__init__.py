"""How do many servers look like one?

At `/mcp` a caller meets every server that it may see. What names one of them (a call, a prompt, a resource) is
translated once, and then goes the very way it would have gone at that server's own address: same objects, same rules,
same limits, same evidence. What names none is asked of all of them at once, and put together.

names.py          what a server's names look like here, in both directions
cursors.py        where in all those lists a page ends
understanding.py  what is wanted, and of which server
visible.py        which servers there are, for this caller
parts.py          the sessions at the servers that stand behind one session here
gathering.py      one question to many servers, answered within a time
merging.py        one stream to the caller out of the streams of many
federation.py     what becomes of a call that names no server
"""

from sidecar.federation.federation import Federation
from sidecar.federation.understanding import FederatedUnderstanding, Spread

__all__ = ["FederatedUnderstanding", "Federation", "Spread"]
