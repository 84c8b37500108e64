"""`sidecar demo`: official SDKs' server, agent and clients, a sidecar between them, and the audit log of it all."""

import asyncio
import itertools
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import click
import orjson

from sidecar.app.application import Application
from sidecar.audit.digest import load_key
from sidecar.audit.rendering import render_record
from sidecar.audit.verify import verify
from sidecar.cli.command import FOLDER, NO, USAGE, CommandFailed
from sidecar.cli.free_ports import free_ports
from sidecar.cli.operator_socket import exchange, path_of
from sidecar.settings.shipped_files import shipped

READY_WITHIN_S = 20.0
CALL_WITHIN_S = 20.0
CALL_EVERY_S = 0.5
OPERATOR_KEY = "operator.key"
CONSOLE = """\
The console: http://127.0.0.1:{admin}/console/
Its key:     {key}
Calls go on until Ctrl-C.
"""
# The clients and the sidecar share one event loop here: loop lag is expected, and must not refuse calls or be logged.
UNHURRIED = {"SIDECAR_SERVER__MAX_LAG_S": "60"}

SETTINGS = """\
# The demo's configuration. Start its server:  {python} -m sidecar.cli.demo_server {upstream}
# its agent:                                   {python} -m sidecar.cli.demo_agent {agent}
# and the sidecar in front of them:            sidecar serve -c {folder}/sidecar.yaml
version: 1
server: {{listen: "127.0.0.1:{data}"}}
# Operators' API, and the console at http://127.0.0.1:{admin}/console/. Its key is in operator.key.
admin:
  listen: "127.0.0.1:{admin}"
  credentials: [{{role: operator, secret_path: operator.key, principal: "user:dmitri"}}]
  console: {{enabled: true}}
# Every caller at this address is the agent `planner`. Use this on one machine, for development.
local: [{{listen: "127.0.0.1:{local}", principal: "nhi:planner"}}]
upstreams:
  notes: {{mcp: {{url: "http://127.0.0.1:{upstream}/mcp"}}}}
  researcher: {{a2a: {{url: "http://127.0.0.1:{agent}/"}}}}
"""
RULES = """\
#: id=planner-searches owner=platform@acme.example
p, nhi:planner, tool:notes/search_notes, use, -, 2, args.repo.startsWith('acme/'), allow
#: id=planner-tidies owner=platform@acme.example
p, nhi:planner, tool:notes/delete_note, use, -, -, -, allow
#: id=planner-archives owner=platform@acme.example approval=role:oncall
p, nhi:planner, tool:notes/archive_notes, use, -, -, -, allow
"""
ROLES = "g, user:dmitri, role:oncall\n"
PERSON = "user:dmitri"
AGENT_RULES = """\
#: id=planner-asks-researcher owner=platform@acme.example
p, nhi:planner, nhi:researcher, use, -, -, call.tool == 'summarise', allow
"""
GUARDRAILS = """\
#: id=nobody-deletes reason="Deletion needs a human"
p, *, tool:*/delete_*, tools/call, -, -, -, deny
"""
TO_GO_ON = """\
   python -m sidecar.cli.demo_server 9100 &
   python -m sidecar.cli.demo_agent 9200 &
   sidecar serve -c {folder}/sidecar.yaml
   then connect an MCP client to http://127.0.0.1:8090/mcp/notes, or an A2A client to .../agents/researcher"""


class DemoScene(NamedTuple):
    title: str
    tool: str
    arguments: dict[str, Any]
    reason: str
    why: str
    answer: str = ""  # of a person: approve or refuse


_SITE, _API = {"repo": "acme/site"}, {"repo": "acme/api"}
_TWICE = "the rule allows two calls per hour"
_SCHEMA = "the tool's schema allows at most 50; the call did not reach the server"
_GUARDRAIL = "the rule planner-tidies allows it, but the guardrail nobody-deletes denies it"
SCENES = (
    DemoScene("Allowed", "search_notes", _SITE, "", "rule planner-searches allows it, and its condition holds"),
    DemoScene("Denied", "delete_note", {**_SITE, "index": 0}, "denied-by-rule", _GUARDRAIL),
    DemoScene("Bad arguments", "search_notes", {**_SITE, "limit": 500}, "bad-arguments", _SCHEMA),
    DemoScene("Allowed again", "search_notes", _API, "", "the second of two calls per hour"),
    DemoScene("Rate-limited", "search_notes", _API, "rate-limited", _TWICE),
)
_NOTE = {"text": "Launch is on Tuesday."}
_TOKEN = "the rule allows summaries; the researcher receives a token that contains the chain"
_CARD = "the rule allows summaries only, so the card shows no other skill"
AGENT_SCENES = (
    DemoScene("An agent calls another", "researcher", {"task_type": "summarise", **_NOTE}, "", _TOKEN),
    DemoScene("Another skill", "researcher", {"task_type": "publish", **_NOTE}, "condition-false", _CARD),
)
_ARCHIVE = {"repo": "acme/api"}
_PERSON = "the rule requires approval by role:oncall, and user:dmitri approved the call while it waited"
_ONCE = "an approval is for one call; user:dmitri refused the second one"
APPROVAL_SCENES = (
    DemoScene("A person approves", "archive_notes", _ARCHIVE, "", _PERSON, "approve"),
    DemoScene("A person refuses", "archive_notes", _ARCHIVE, "approval-refused", _ONCE, "refuse"),
)


@click.command()
@click.option("--keep", type=FOLDER, help="Keep the files of the demo in this folder.")
@click.option("--stay", is_flag=True, help="Keep making calls and serve the console until Ctrl-C.")
def demo(keep: Path | None, stay: bool) -> None:
    """Run a demo: a server, an agent and their clients, nine calls with different outcomes, and the audit log."""
    try:
        import a2a  # noqa: F401  # only checks that they are installed
        import mcp  # noqa: F401
    except ImportError:
        needed = "the demo needs the official MCP and A2A SDKs: pip install 'nhi-sidecar[demo]'"
        raise CommandFailed(needed, USAGE) from None
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise CommandFailed(f"{keep} is not empty: choose another folder, so that nothing is overwritten", USAGE)
    folder = keep or Path(tempfile.mkdtemp(prefix="sidecar-demo-"))
    try:
        good = asyncio.run(_run(folder, stay))
        if keep is not None:
            write_folder(folder, data=8080, admin=9090, local=8090, upstream=9100, agent=9200)
            click.secho(f"\nThe files are in {folder}. To continue:", bold=True)
            click.secho(TO_GO_ON.format(folder=folder))
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if not good:
        raise CommandFailed("\nThe outcomes are not the expected ones.", NO)


def write_folder(folder: Path, *, data: int, admin: int, local: int, upstream: int, agent: int) -> Path:
    shutil.copytree(shipped("models"), folder / "models", dirs_exist_ok=True)
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    files = {"agent_to_tool": RULES, "nhi_to_nhi": AGENT_RULES, "guardrails": GUARDRAILS, "roles": ROLES}
    for name, rows in files.items():
        (folder / "policies" / f"{name}.csv").write_text(rows)
    (folder / OPERATOR_KEY).touch(mode=0o600)
    (folder / OPERATOR_KEY).write_text(secrets.token_hex(32))
    settings = folder / "sidecar.yaml"
    ports = {"data": data, "admin": admin, "local": local, "upstream": upstream, "agent": agent}
    settings.write_text(SETTINGS.format(python="python", folder=folder, **ports))
    return settings


async def _run(folder: Path, stay: bool) -> bool:
    logging.getLogger("sidecar.http.server.load_shedding").setLevel(logging.ERROR)
    data, admin, local, upstream, agent = free_ports(5)
    settings = write_folder(folder, data=data, admin=admin, local=local, upstream=upstream, agent=agent)
    click.secho(
        "Starting an MCP server and an A2A agent on the official SDKs, and the sidecar in front of them.", dim=True
    )
    click.secho("The caller is the agent nhi:planner.\n", dim=True)
    async with _process("demo_server", upstream), _process("demo_agent", agent):
        app = await Application.start(settings, UNHURRIED)
        try:
            good = await _play(app, f"http://127.0.0.1:{local}/mcp/notes")
            good &= await _converse(app, f"http://127.0.0.1:{local}/agents/researcher")
            good &= await _wait_for_a_person(app, f"http://127.0.0.1:{local}/mcp/notes")
            if stay:
                key = (folder / OPERATOR_KEY).read_text()
                click.secho(CONSOLE.format(admin=admin, key=key), bold=True)
                await _go_on(f"http://127.0.0.1:{local}/mcp/notes")
        finally:
            await app.stop()
        return _verify(folder) and good


async def _go_on(url: str) -> None:
    """Repeats the calls to the server until SIGINT or SIGTERM."""
    from mcp import Client

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Client(url) as client:
        for scene in itertools.cycle(SCENES):
            await _call(client, scene)
            with suppress(TimeoutError):
                async with asyncio.timeout(CALL_EVERY_S):
                    await stop.wait()
            if stop.is_set():
                return


async def _play(app: Application, url: str) -> bool:
    from mcp import Client

    async with asyncio.timeout(len(SCENES) * CALL_WITHIN_S), Client(url) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        click.secho(f"The agent sees: {', '.join(listed)}   (the server also has delete_note)\n", dim=True)
        return await _shown(app, 1, SCENES, partial(_call, client))


async def _converse(app: Application, url: str) -> bool:
    """Calls the agent with the official A2A client, which finds the address in the card that the sidecar serves."""
    import httpx
    from a2a.client import A2ACardResolver, ClientConfig, ClientFactory

    async with asyncio.timeout(len(AGENT_SCENES) * CALL_WITHIN_S), httpx.AsyncClient(trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        skills = ", ".join(skill.id for skill in card.skills)
        click.secho(f"The researcher's card, for the planner: {skills}   (the agent can also publish)\n", dim=True)
        async with ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card) as client:
            return await _shown(app, len(SCENES) + 1, AGENT_SCENES, partial(_send, client))


async def _wait_for_a_person(app: Application, url: str) -> bool:
    """Calls a tool that needs an approval, and answers as the person who gives it."""
    from mcp import Client

    async def call(scene: DemoScene) -> str:
        waiting = asyncio.create_task(_call(client, scene))
        target = path_of("approvals", await _asked_for(app), scene.answer)
        await _ask_operator(app, target, {"principal": PERSON})
        return await waiting

    first = len(SCENES) + len(AGENT_SCENES) + 1
    async with asyncio.timeout(len(APPROVAL_SCENES) * CALL_WITHIN_S), Client(url) as client:
        await client.list_tools()
        return await _shown(app, first, APPROVAL_SCENES, call)


async def _asked_for(app: Application) -> str:
    """The id of the request for approval of the waiting call."""
    while True:
        if found := (await _ask_operator(app, "/api/approvals?state=waiting"))["approvals"]:
            return str(found[0]["id"])
        await asyncio.sleep(0.05)


async def _ask_operator(app: Application, target: str, order: object = None) -> Any:
    """Makes the requests of `sidecar approval`, over the control socket."""
    return (await asyncio.to_thread(exchange, app.settings.control_path, target, order))[1]


async def _shown(
    app: Application, first: int, scenes: Sequence[DemoScene], call: Callable[[DemoScene], Awaitable[str]]
) -> bool:
    """Makes the calls and shows each with its audit record. Returns whether all outcomes are the expected ones."""
    good = True
    for number, scene in enumerate(scenes, first):
        heard = await call(scene)
        record = orjson.loads(app.settings.audit_path.read_bytes().splitlines()[-1])
        good &= (record["reason"] or "") == scene.reason
        click.secho(f"{number}. {scene.title}", fg="red" if scene.reason else "green", bold=True)
        arguments = ", ".join(f"{key}={value!r}" for key, value in scene.arguments.items())
        click.echo(f"   calls   {scene.tool}({arguments})\n   gets    {heard}")
        click.secho(f"   why     {scene.why}", dim=True)
        for line in render_record(record).splitlines():
            click.echo(f"   audit   {line}")
        click.echo("")
    return good


async def _send(client: Any, scene: DemoScene) -> str:
    from a2a.types import Message, Part, Role, SendMessageRequest
    from a2a.utils.errors import A2AError

    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=scene.arguments["text"])])
    message.metadata.update({"task_type": scene.arguments["task_type"]})
    try:
        async for event in client.send_message(SendMessageRequest(message=message)):
            return " | ".join(part.text for artifact in event.task.artifacts for part in artifact.parts)
    except A2AError as error:
        return f"error: {str(error).splitlines()[0]}"
    return "nothing"


async def _call(client: Any, scene: DemoScene) -> str:
    from mcp import MCPError

    try:
        result = await client.call_tool(scene.tool, scene.arguments)
    except MCPError as error:
        return f"error {error.error.code}: {error.error.message}"
    text = " | ".join(part.text for part in result.content if part.type == "text")
    return f"tool error: {text}" if result.is_error else text


def _verify(folder: Path) -> bool:
    path = folder / "data" / "audit" / "audit.jsonl"
    report = verify([path], key=load_key(folder / "data" / "keys" / "audit.key"))
    click.secho("Verification of the audit log:")
    for problem in report.problems:
        click.secho(f"   {problem}", bold=True)
    for line in report.proved:
        click.secho(f"   {line}")
    return report.ok


@asynccontextmanager
async def _process(module: str, port: int) -> AsyncIterator[None]:
    words = (sys.executable, "-m", f"sidecar.cli.{module}", str(port))
    null = asyncio.subprocess.DEVNULL
    env = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")}
    process = await asyncio.create_subprocess_exec(*words, stdin=null, stdout=null, stderr=null, env=env)
    try:
        await _until_listening(port, process)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _until_listening(port: int, process: asyncio.subprocess.Process) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        await writer.wait_closed()
        return
    raise click.ClickException("the demo's server or agent did not start")
