"""Is the policy what its owners mean it to be? Policy as code, on the engine that serves.

places        where the models and rows lie that a command speaks about
revisions     what the policy said in a git revision
catalogue     what exists, according to its owners? for diff and suggest

check/        what is refused, and what is suspicious?
suite_report  how did the policy's own tests go? `sidecar.policy_tools.suites` runs them; junit tells CI systems
explain       why is it allowed or denied?
nearest       nothing allowed it: which rules came nearest? for explain and failed tests
diff/         whose answers change between two policies, and what else is different?
globs         which names fit these patterns and none of those? for diff
replay        what would another policy have answered to what is on record?
records       what was asked and answered when a line of evidence was written? for explain and replay
recorded      how did a condition come out, if all that is left of its arguments is evidence? for both
suggest/      which are the fewest rules that allow what was recorded, and nothing else that is known?
convert/      what does this CSV say as YAML, or this YAML as CSV?
export/       what would plain pycasbin need to give our answers?
outputs       how are several files written, all of them or none? for convert and export
bench/        how long does a decision take, here and at other sizes?
"""
