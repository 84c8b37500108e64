// What does a client do, and what does it hear? `play.py` for clients that are written in JavaScript.
import { createInterface } from "node:readline";

const STEP_MS = 15_000;
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export const say = (members) => process.stdout.write(`@@${JSON.stringify(members)}\n`);

export async function ask(what) {
  say({ ask: what });
  return (await lines.next()).value;
}

const wordsOf = (error) => `${error?.name ?? "Error"}: ${error?.message ?? error}`;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// An action gives {text, isError}.
export async function step(name, action) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(Object.assign(new Error("no answer"), { hung: true })), STEP_MS);
  });
  try {
    const told = await Promise.race([action(), late]);
    say({ step: name, how: told.isError ? "marked" : "answer", text: String(told.text) });
  } catch (error) {
    say({ step: name, how: error?.hung ? "hung" : "raised", text: wordsOf(error) });
  } finally {
    clearTimeout(timer);
  }
}

// client: {names(), call(tool, args, {onProgress, signal})}
async function play(client, tag, part) {
  const echo = (text) => () => client.call("echo", { text }, {});
  await step("list", async () => ({ text: (await client.names()).sort().join(", ") }));
  await step("allowed", echo("hello"));
  if (part !== "restart") await refusals(client, echo);
  if (part === "whole") {
    await progress(client, tag);
    await cancel(client, tag);
    await step("after-cancel", echo("still here"));
  }
  if (part === "short") return;
  await ask("restart");
  await step("restarted", echo("again"));
  await step("restarted-2", echo("again"));
}

async function refusals(client, echo) {
  await step("denied", echo("forbidden"));
  await step("after-denied", echo("still here"));
  await step("first", () => client.call("weather", { city: "Oslo" }, {}));
  await step("limited", () => client.call("weather", { city: "Oslo" }, {}));
  await step("after-limited", echo("still here"));
}

// The tool reports once, and again when the driver lets it go on.
async function progress(client, tag) {
  let heard = 0;
  const call = client.call("steps", { gate: tag }, { onProgress: () => (heard += 1) });
  await ask("reported");
  await step("progress", async () => {
    await call;
    return { text: String(heard) };
  });
}

async function cancel(client, tag) {
  const control = new AbortController();
  const call = client.call("slow", { tag }, { signal: control.signal }).then((told) => told.text, wordsOf);
  await ask("begun");
  await step("cancel", async () => {
    control.abort();
    return { text: await Promise.race([call, pause(5000).then(() => "the call goes on")]) };
  });
  await ask("cancelled");
}

export async function run(opened) {
  const [url, tag, part] = process.argv.slice(2);
  process.on("unhandledRejection", () => {});
  console.log = console.info = console.warn = console.error = () => {};
  try {
    await play(await opened(url), tag, part);
  } catch (error) {
    say({ step: "broken", how: "raised", text: wordsOf(error) });
  }
  process.exit(0);
}

// What a CallToolResult says.
export const textOf = (result) => ({
  text: (result.content ?? []).map((part) => part.text ?? "").join(" "),
  isError: result.isError === true,
});
