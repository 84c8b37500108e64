"""May they? Policy as code: Casbin's models and rows in, one `Decision` out. No I/O but reading the files given.

load_policy  two folders → PolicySource, or PolicyError with every fault
Engine       one revision: decide, may_list, enter

files → rows → grammar → draft (bulk) → source   what do the files say
model (expression), conditions (syntax), roles   what do their parts mean
table, pattern_index, compiler → matching        which rows match: looked up, whatever their number
casbin_part                                      what is not compiled: the only module that runs Casbin
askers, links → engine                           one link; the whole chain
"""

from sidecar.policy.engine import Engine
from sidecar.policy.scopes import Scope
from sidecar.policy.source import PolicySource, load_policy

__all__ = ["Engine", "PolicySource", "Scope", "load_policy"]
