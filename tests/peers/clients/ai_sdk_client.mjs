// The AI SDK: generateText with its MCP tools and a mock model, which calls one tool and repeats what it reads.
import { createMCPClient } from "@ai-sdk/mcp";
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { run } from "./play.mjs";

const USAGE = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const generated = (part, unified) => ({ content: [part], finishReason: { unified }, usage: USAGE, warnings: [] });

function read(output) {
  if (output.type === "content") return output.value.map((part) => part.text ?? "").join(" ");
  return typeof output.value === "string" ? output.value : JSON.stringify(output.value);
}

await run(async (url) => {
  const client = await createMCPClient({ transport: { type: "http", url } });
  return {
    names: async () => Object.keys(await client.tools()),
    call: async (toolName, args, { signal }) => {
      let told;
      const model = new MockLanguageModelV4({
        doGenerate: async ({ prompt }) => {
          const last = prompt.at(-1);
          if (last.role !== "tool") {
            const part = { type: "tool-call", toolCallId: "1", toolName, input: JSON.stringify(args) };
            return generated(part, "tool-calls");
          }
          const { output } = last.content[0];
          told = { text: read(output), isError: output.type.startsWith("error") };
          return generated({ type: "text", text: "done" }, "stop");
        },
      });
      const tools = await client.tools();
      await generateText({ model, tools, prompt: "go", stopWhen: stepCountIs(3), abortSignal: signal, maxRetries: 0 });
      return told;
    },
  };
});
