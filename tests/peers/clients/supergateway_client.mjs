// supergateway, from Streamable HTTP to stdio.
import { bridged } from "./official.mjs";
import { run } from "./play.mjs";

await run((url) => bridged("supergateway/dist/index.js", "--streamableHttp", url, "--logLevel", "none"));
