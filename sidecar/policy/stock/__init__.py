"""Decides by Casbin policies of any form, as pycasbin does, over unmodified models and rows.

functions   Casbin's matching functions, compiled          model      requests, columns, role definitions, effects
expression  matchers and rules: what they may hold         rules      the rows of one model: decides requests
compiler    matchers and rules, compiled                   row_index  finds the rows that a request concerns
roles       role definitions, domains and conditions       reading    models and rows from their files
names       our names to those of the policy               request    our questions to requests of the policy
table       the rows as rules, for the tools               policy     one kind's decisions
"""
