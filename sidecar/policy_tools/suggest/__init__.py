"""Suggests the fewest rules that allow recorded use and nothing else.

evidence       who used what, from audit records
grid           the used cells, with equal ones merged, and the boxes that cannot grow; box_cover, the fewest around all
rule_shape     each box as a rule, in its shortest form
suggestion     the whole suggestion, with its names and records
terms          what the present policy contributes to it
render         files and data
verification   reads the result back and verifies it; tests that pin it
"""
