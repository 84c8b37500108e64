"""Measures decisions of this policy and of generated ones: `ladder` draws them, `measurement` measures."""
