"""Messages of Envoy's external authorization, `envoy.service.auth.v3`: the fields that the sidecar reads and writes.

Only the numbers of fields matter on the wire, so messages of other packages have short names here, and enumerations are
integers. Source: Envoy's published protos (xds).
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.protocols.a2a.schema import schema_from
from sidecar.protocols.a2a.wire import message_classes

CHECK: Final = "/envoy.service.auth.v3.Authorization/Check"
OVERWRITE: Final = 2  # HeaderValueOption: OVERWRITE_IF_EXISTS_OR_ADD
_CLASSES: Final = message_classes(
    schema_from(
        "envoy.service.auth.v3",
        """
CheckRequest: 1 attributes:AttributeContext
AttributeContext: 1 source:Peer, 4 request:Request, 10 context_extensions:{string}
Peer: 1 address:Address, 4 principal:string, 5 certificate:string
Address: 1 socket_address:SocketAddress
SocketAddress: 2 address:string
Request: 2 http:HttpRequest
HttpRequest: 2 method:string, 3 headers:{string}, 4 path:string, 5 host:string, 11 body:string, 12 raw_body:bytes,
    13 header_map:HeaderMap
HeaderMap: 1 headers:[HeaderValue]
HeaderValue: 1 key:string, 2 value:string, 3 raw_value:bytes
CheckResponse: 1 status:Status, 2 denied_response:DeniedHttpResponse/http_response,
    3 ok_response:OkHttpResponse/http_response, 4 dynamic_metadata:Struct
Status: 1 code:int32, 2 message:string
DeniedHttpResponse: 1 status:HttpStatus, 2 headers:[HeaderValueOption], 3 body:string
HttpStatus: 1 code:int32
OkHttpResponse: 2 headers:[HeaderValueOption], 5 headers_to_remove:[string],
    6 response_headers_to_add:[HeaderValueOption]
HeaderValueOption: 1 header:HeaderValue, 3 append_action:int32
""",
        {},
    )
)
CheckRequest: Final[Any] = _CLASSES["CheckRequest"]
CheckResponse: Final[Any] = _CLASSES["CheckResponse"]
