// The MCP Inspector's command line: each step is a process of its own, and what a person reads is what it prints.
import { spawn } from "node:child_process";
import { run, textOf } from "./play.mjs";

const PROGRAM = new URL("node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", import.meta.url);

const printed = (signal, ...args) =>
  new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [PROGRAM.pathname, "--cli", ...args], { stdio: ["ignore", "pipe", "pipe"] });
    let out = "";
    let complaints = "";
    child.stdout.on("data", (data) => (out += data));
    child.stderr.on("data", (data) => (complaints += data));
    signal?.addEventListener("abort", () => child.kill("SIGINT"));
    child.on("close", (code) => {
      if (code === 0) resolve(out);
      else reject(Object.assign(new Error(`${out}${complaints}`.trim()), { name: `exit ${code}` }));
    });
  });

await run(async (url) => ({
  names: async () => {
    const listed = JSON.parse(await printed(null, url, "--transport", "http", "--method", "tools/list"));
    return listed.tools.map((tool) => tool.name);
  },
  call: async (name, args, { signal }) => {
    const pairs = Object.entries(args).flatMap(([key, value]) => ["--tool-arg", `${key}=${value}`]);
    const called = ["--method", "tools/call", "--tool-name", name, ...pairs];
    return textOf(JSON.parse(await printed(signal, url, "--transport", "http", ...called)));
  },
}));
