"""Checks, tests, compares and suggests policies, with the engine that serves calls.

policy_location      the models and rows that a command works on
git_revisions        the policy in a git revision
catalogue            the names that are known to exist, for check, diff and suggest
rule_text            rules, names and times as text, for all of them

check/               errors and suspicious rules
suites/              the policy's own tests
explain              why a call is allowed or denied
explanation          explanations as text and as data
nearest_rules        the rules nearest to a denied call, for explain
diff/                the access that changes between two policies, and all other differences
comparison           the serving policy and another one, compared in a separate process
glob_algebra         names that match some patterns and not others, for diff and check
casbin_calls         the calls that rows of Casbin models apply to, for diff, export, suites and bench
casbin_trace         the request to a Casbin model and its nearest rows, for explain
casbin_program       the settings for the policy of a Casbin program, for init and import
replay               the answers of another policy to recorded decisions
audit_records        the questions and answers in audit records, for explain and replay
recorded_conditions  outcomes of conditions for which only the audit record exists, for explain and replay
suggest/             the fewest rules that allow the recorded use and nothing else that is known
convert/             CSV as YAML, and YAML as CSV
export/              the policy for plain pycasbin
bench                the time of a decision, for this policy and for generated ones of other sizes
"""
