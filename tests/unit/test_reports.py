"""Has every report from people who run such systems as many tests as it had?

Public bug reports about gateways, proxies, SDKs and policy engines, each turned into an input for us and what is right
there. `REPORTS` says where each report is; the tests of a report name it: `git grep BL-001 tests`.
"""

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent.parent
# A report: how many tests name it, at least, and where it is.
REPORTS = """
001 3 stacklok/toolhive#5745, permission-protocol/deploy-gate#59
003 2 BerriAI/litellm#30559
005 1 agentrust-io/cmcp#144
008 2 lpezet/secure-agent-lab#123
009 3 kagent-dev/kagent#2464
010 2 Kuadrant/mcp-gateway#662
014 5 langchain-ai/langchain-mcp-adapters#605, IBM/chuk-tool-processor#53
015 4 cloudfoundry/haproxy-boshrelease#86
018 2 nextlevelbuilder/goclaw#1026
019 2 aio-libs/aiohttp#5693, #7056
020 1 google/adk-js#832
021 3 stacklok/toolhive#5257
022 2 apache/casbin#1392
024 3 envoyproxy/ratelimit#462
025 2 modelcontextprotocol/python-sdk#2328
026 2 apache/casbin-pycasbin#204
027 3 open-policy-agent/opa-envoy-plugin#646
028 4 open-policy-agent/opa#8123, #3043
029 3 CVE-2026-42271
031 1 dapr/dapr#5929
032 1 agentgateway/agentgateway#1148
034 1 apache/casbin-pycasbin#60, #87
035 3 github/gh-aw-mcpg#3332, openclaw/openclaw#65612
036 4 agentgateway/agentgateway#1266
037 1 agiletec-inc/airis-mcp-gateway#208, #216
038 2 getnao/nao#913, perplexityai/modelcontextprotocol#110
039 1 golang/vulndb#4810, #5236
040 2 affaan-m/ECC#1249, #2749
041 2 vutran1710/PyrateLimiter#182, long2ice/fastapi-limiter#32
043 2 modelcontextprotocol/python-sdk#3300, #1283, #3228
048 4 agentgateway/agentgateway#2798
049 2 golang/vulndb#4804, ory/oathkeeper#1003, envoyproxy/envoy#6435
050 1 IBM/mcp-context-forge#5687, #6146, wso2/gateway-controllers#308
051 2 IBM/mcp-context-forge#6531
052 1 wso2/api-platform#2869
055 6 a2aproject/a2a-python#786, a2aproject/a2a-js#584
059 5 BerriAI/litellm#17323
060 2 PrefectHQ/fastmcp#1068
061 3 IBM/mcp-context-forge#5471
062 4 modelcontextprotocol/go-sdk#805, docker/mcp-gateway#418
063 2 BerriAI/litellm#34732, #16011
064 1 stacklok/toolhive#5827
065 1 prometheus/client_python#495, #568, #509
066 3 IBM/mcp-context-forge#2055
068 2 envoyproxy/ratelimit#821
069 1 python-jsonschema/jsonschema#693, #1089
070 2 MystenLabs/MemWal#491
071 2 a2aproject/a2a-python#1159
074 3 supercorp-ai/supergateway#137, #124
075 2 IBM/mcp-context-forge#5441
076 5 envoyproxy/envoy#45202
078 2 IBM/mcp-context-forge#4785
080 2 Temikus/denkeeper#219, khive-ai/lionpride#98
081 3 apache/casbin-node-casbin#114, #115, apache/casbin-jcasbin#30
086 4 sparfenyuk/mcp-proxy#75
087 2 apache/casbin-Casbin.NET#351
088 4 agentgateway/agentgateway#2981, #3500, #2251
090 3 stacklok/toolhive#1188
091 2 pomerium/documentation#795, opendefender/OpenRisk#345
093 4 awslabs/agentcore-samples#1649, openabdev/openab#1080
095 2 redis/redis-py#2624, #2665
097 1 stacklok/toolhive#5306
099 1 apache/casbin-pycasbin#15, #71, #30
100 2 supercorp-ai/supergateway#108, #111
101 3 agentgateway/agentgateway#742, #464
102 1 apache/casbin-pycasbin#121
"""


def test_a_report_is_answered_by_tests_that_name_it() -> None:
    named = Counter[str]()
    for file in (*TESTS.rglob("test_*.py"), *TESTS.rglob("check_*.py")):
        for block in file.read_text("utf-8").split("\n\n\n"):
            if re.search(r"^(?:async )?def test_", block, re.MULTILINE):
                named.update(set(re.findall(r"\bBL-(\d{3})\b", block)))
    wanted = {report: int(count) for report, count, _ in (line.split(" ", 2) for line in REPORTS.split("\n") if line)}
    assert {report: count for report, count in wanted.items() if named[report] < count} == {}
    assert named.keys() <= wanted.keys(), "a new report is counted here"
