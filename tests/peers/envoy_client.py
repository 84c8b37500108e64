"""Asks for decisions as Envoy does, with the messages that Envoy publishes.

`python envoy_client.py` runs under an interpreter that has `xds-protos`. Each line of standard input is one check, each
line of standard output what came of it; both are JSON. It decides nothing: `test_ext_authz.py` does.

    {"grpc": "host:port", "metadata": [[name, value]], "check": CheckRequest}       a CheckResponse, or the error
    {"http": "host:port", "method": …, "path": …, "headers": [[name, value]], "body": base64}   status, headers, body
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
from typing import Any

import grpc
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict

PATIENCE_S = 30.0
CHANNELS: dict[str, grpc.Channel] = {}


def over_grpc(asked: dict[str, Any]) -> dict[str, Any]:
    """The response with every field, also the empty ones; the code and words of an error."""
    place = asked["grpc"]
    options = [("grpc.max_send_message_length", -1)]
    channel = CHANNELS.setdefault(place, grpc.insecure_channel(place, options))
    request = ParseDict(asked["check"], external_auth_pb2.CheckRequest())
    metadata = [(name, value) for name, value in asked["metadata"]]
    try:
        response = external_auth_pb2_grpc.AuthorizationStub(channel).Check(
            request, timeout=PATIENCE_S, metadata=metadata
        )
    except grpc.RpcError as error:
        return {"code": error.code().name, "words": error.details()}
    return MessageToDict(response, use_integers_for_enums=True)


def over_http(asked: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(asked["http"], timeout=PATIENCE_S)
    body = base64.b64decode(asked["body"])
    connection.putrequest(asked["method"], asked["path"], skip_host=True, skip_accept_encoding=True)
    for name, value in [*asked["headers"], ["content-length", str(len(body))]]:
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    told = {"status": response.status, "headers": response.getheaders(), "body": response.read().decode()}
    connection.close()
    return told


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(over_grpc(asked) if "grpc" in asked else over_http(asked)), flush=True)


if __name__ == "__main__":
    main()
