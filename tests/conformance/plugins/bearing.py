"""How does a kit that knows of no credentials bear one?

A pytest plugin for the official A2A TCK, which calls without any: a task belongs to somebody, so we ask who. Whatever
its clients send says TCK_API_KEY, unless it says something there itself.

The kit of 0.3 looks for a card at the root of a host alone, where ours has one for each agent: it is sent to that under
TCK_AGENT. And it dials gRPC at a URL alone, where our cards have `host:port`, which is what the official clients dial.
"""

from __future__ import annotations

import json
import os
from typing import Any

import grpc
import httpx
import requests

NAME, VALUE = "X-API-Key", os.environ["TCK_API_KEY"]
AGENT, CARD = os.environ["TCK_AGENT"], "/.well-known/agent-card.json"


class _Bearing(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def intercept_unary_unary(self, go_on: Any, details: Any, request: Any) -> Any:
        return go_on(self._borne(details), request)

    def intercept_unary_stream(self, go_on: Any, details: Any, request: Any) -> Any:
        return go_on(self._borne(details), request)

    def _borne(self, details: Any) -> Any:
        return details._replace(metadata=[*(details.metadata or ()), (NAME.lower(), VALUE)])


def _before_sending(kind: type, method: str) -> None:
    send = getattr(kind, method)

    def bearing(self: Any, request: Any, *arguments: Any, **more: Any) -> Any:
        request.headers.setdefault(NAME, VALUE)
        return send(self, request, *arguments, **more)

    setattr(kind, method, bearing)


def _from_the_agent(send: Any) -> Any:
    def sent(self: Any, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        if request.path_url != CARD:
            return send(self, request, **more)
        request.url = AGENT + CARD
        response = send(self, request, **more)
        card = response.json()
        for one in card.get("additionalInterfaces", []):
            one["url"] = one["url"] if "://" in one["url"] else f"http://{one['url']}"
        response._content = json.dumps(card).encode()
        return response

    return sent


def _channel(target: str, *arguments: Any, **more: Any) -> Any:
    return grpc.intercept_channel(_insecure_channel(target, *arguments, **more), _Bearing())


_insecure_channel = grpc.insecure_channel
grpc.insecure_channel = _channel
for _kind in (httpx.Client, httpx.AsyncClient, requests.Session):
    _before_sending(_kind, "send")
requests.Session.send = _from_the_agent(requests.Session.send)
