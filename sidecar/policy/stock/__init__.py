"""Decides by Casbin policies of any form, with pycasbin's results, over unmodified models and rows.

model          requests, columns, role definitions, effects    functions   Casbin's matching functions, compiled
expression     matchers and rules: the allowed syntax          compiler    matchers and rules, compiled
roles          role definitions, domains and conditions        rules       the rows of one model: decides requests
pattern_roles  roles whose names match patterns                row_index   finds the rows that a request concerns
names          the sidecar's names to those of the policy                reading     models and rows from their files
request        the sidecar's questions to requests of the policy         table       the rows as rules, for the tools
policy         one kind's decisions
"""
