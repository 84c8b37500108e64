"""Has every report from people who run such systems as many tests as it had?

Public bug reports about gateways, proxies, SDKs and policy engines, each turned into an input for us and what is right
there. The tests of a report name it: `git grep BL-001 tests`.
"""

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent.parent
# Report: how many tests name it, at least.
REPORTS = """
001:3 003:2 005:1 008:2 009:3 010:2 014:5 015:4 018:2 019:2 020:1 021:3 022:2 024:3 025:2 026:2 027:3 028:4 029:3
031:1 032:1 034:1 035:3 036:4 037:1 038:2 039:1 040:2 041:2 043:2 048:4 049:2 050:1 051:2 052:1 055:6 059:5 060:2
061:3 062:4 063:2 064:1 065:1 066:3 068:2 069:1 070:2 071:2 074:3 075:2 076:5 078:2 080:2 081:3 086:4 087:2 088:4
090:3 091:2 093:4 095:2 097:1 099:1 100:2 101:3 102:1
"""


def test_a_report_is_answered_by_tests_that_name_it() -> None:
    named = Counter[str]()
    for file in (*TESTS.rglob("test_*.py"), *TESTS.rglob("check_*.py")):
        for block in file.read_text("utf-8").split("\n\n\n"):
            if re.search(r"^(?:async )?def test_", block, re.MULTILINE):
                named.update(set(re.findall(r"\bBL-(\d{3})\b", block)))
    wanted = {report: int(count) for report, count in (entry.split(":") for entry in REPORTS.split())}
    assert {report: count for report, count in wanted.items() if named[report] < count} == {}
    assert named.keys() <= wanted.keys(), "a new report is counted here"
