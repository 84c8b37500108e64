// A client of the official TypeScript SDK, 1.x, on any transport.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { textOf } from "./play.mjs";

export async function official(transport) {
  const client = new Client({ name: "clients", version: "1" });
  await client.connect(transport);
  return {
    names: async () => (await client.listTools()).tools.map((tool) => tool.name),
    call: async (name, args, { onProgress, signal }) =>
      textOf(await client.callTool({ name, arguments: args }, undefined, { onprogress: onProgress, signal })),
  };
}

// The same through a program that speaks stdio.
export const stdio = (command, ...args) => official(new StdioClientTransport({ command, args, stderr: "ignore" }));

// That of a package.
export const bridged = (program, ...args) =>
  stdio(process.execPath, new URL(`node_modules/${program}`, import.meta.url).pathname, ...args);
