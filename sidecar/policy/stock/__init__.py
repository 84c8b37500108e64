"""Decides by Casbin policies of any form, as pycasbin does, over unmodified models and rows.

functions   Casbin's matching functions, compiled          names    our names to those of the policy
expression  matchers, compiled                             model    requests, columns, role definitions, effects
roles       role definitions, with domains and conditions  rules    the rows of one model: decides requests
"""
