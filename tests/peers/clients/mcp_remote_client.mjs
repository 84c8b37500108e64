// mcp-remote, as a client's file would start it.
import { bridged } from "./official.mjs";
import { run } from "./play.mjs";

await run((url) => bridged("mcp-remote/dist/proxy.js", url, "--transport", "http-only"));
