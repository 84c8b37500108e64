// The official TypeScript SDK, 1.x.
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { official } from "./official.mjs";
import { run } from "./play.mjs";

await run((url) => official(new StreamableHTTPClientTransport(new URL(url))));
