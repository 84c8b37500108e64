"""Runs a policy's own tests, on the engine and the limiter that serve.

suite_schema    what a test file may contain
loading         reads the tests
execution       runs one test; the rules that an answer rests on, and so the rules that no test exercises
suite           all of them: read_suites, run_suites; self_test for a reload
report          their results as text, JSON and JUnit XML
"""
