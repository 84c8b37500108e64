// The official JavaScript SDK for A2A.
import { ClientFactory } from "@a2a-js/sdk/client";
import { run } from "./play.mjs";

// `talk.py` says the same in Python.
function addressed(tool, args) {
  if (tool === "weather") return ["metered", "echo: fair"];
  if (tool === "steps") return ["player", "slow: 3"];
  if (tool === "slow") return ["player", `forever: ${args.tag}`];
  return [args.text === "forbidden" ? "closed" : "player", `echo: ${args.text}`];
}

const textIn = (message) =>
  (message?.parts ?? []).map((part) => (part.content?.$case === "text" ? part.content.value : "")).join("");

await run(async (url) => {
  const factory = new ClientFactory();
  const agent = (name) => factory.createFromUrl(`${url}/${name}/`);
  return {
    names: async () => (await (await agent("player")).getAgentCard()).skills.map((skill) => skill.id),
    call: async (tool, args, { onProgress, signal }) => {
      const [name, text] = addressed(tool, args);
      const client = await agent(name);
      const parts = [{ content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" }];
      const message = { messageId: crypto.randomUUID(), role: 1, parts, contextId: "", taskId: "" };
      const request = { message: { ...message, extensions: [], referenceTaskIds: [] }, tenant: "" };
      let heard = "";
      let taskId = "";
      signal?.addEventListener("abort", () => client.cancelTask({ id: taskId, tenant: "" }).catch(() => {}));
      for await (const { payload } of client.sendMessageStream(request, {})) {
        const { value } = payload;
        taskId = value.taskId || value.id || taskId;
        if (payload.$case === "statusUpdate" && value.status?.state === 2) onProgress?.();
        heard = textIn(payload.$case === "message" ? value : value.status?.message) || heard;
      }
      return { text: heard };
    },
  };
});
