"""Suggests the fewest rules that allow recorded use: evidence → grid → box_cover → rule_shape → suggestion → render."""
