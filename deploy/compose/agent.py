"""Calls a server continuously: searches notes, and every third time tries to delete one, which no rule allows."""

import asyncio
import sys
from itertools import count

from mcp import Client
from mcp.shared.exceptions import MCPError

EVERY_S = 1.0


async def main(url: str) -> None:
    async with Client(url) as client:
        for number in count(1):
            tool = "delete_note" if number % 3 == 0 else "search_notes"
            arguments = {"repo": "acme/site", "index": 0} if tool == "delete_note" else {"repo": "acme/site"}
            try:
                result = await client.call_tool(tool, arguments)
                sys.stdout.write(f"{tool} {'failed' if result.is_error else 'done'}\n")
            except MCPError as error:
                sys.stdout.write(f"{tool} refused: {error}\n")
            sys.stdout.flush()
            await asyncio.sleep(EVERY_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
