"""Decides calls by policy. Casbin models and rows go in; a `Decision` comes out. The only I/O is loading a policy.

load_policy  reads the files of models and rows; returns a PolicySource, or raises PolicyError with all faults
Engine       one revision of a policy: decide, may_list, enter

files → rows → grammar → row_readers → builder → source   parse and check the files
model (expression), conditions (syntax), roles          parse and check the parts of rows and models
plain_parser, plain_conditions                          parse and evaluate most conditions, without CEL
table, pattern_index, compiler → matching               find matching rows by index, independent of the row count
casbin_engine                                           decides what is not compiled; only it decides by Casbin
link_decision → engine                                  decide one link, then the whole chain; cache its cases
"""

from sidecar.policy.engine import Engine
from sidecar.policy.source import PolicySource, load_policy

__all__ = ["Engine", "PolicySource", "load_policy"]
