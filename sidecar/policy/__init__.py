"""May they? Policy as code: Casbin's models and rows in, one `Decision` out. No I/O but reading the files given.

load_policy  two folders → PolicySource, or PolicyError with every fault
Engine       one revision: decide, may_list, enter

files → rows → grammar → source           what do the files say
model, conditions (syntax), roles         what do their parts mean
judge                                     what does Casbin say: the only module that runs it
cases → walks → engine                    one link; the whole chain; what is asked of it
"""

from sidecar.policy.engine import Engine
from sidecar.policy.scopes import Scope
from sidecar.policy.source import PolicySource, load_policy

__all__ = ["Engine", "PolicySource", "Scope", "load_policy"]
