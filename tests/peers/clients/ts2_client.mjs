// The official TypeScript SDK, 2.x.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { run, textOf } from "./play.mjs";

await run(async (url) => {
  const client = new Client({ name: "clients", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return {
    names: async () => (await client.listTools()).tools.map((tool) => tool.name),
    call: async (name, args, { onProgress, signal }) =>
      textOf(await client.callTool({ name, arguments: args }, { onprogress: onProgress, signal })),
  };
});
