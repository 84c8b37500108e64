// Our own `sidecar connect`, as a client's file would start it.
import { stdio } from "./official.mjs";
import { run } from "./play.mjs";

await run((url) => stdio(process.env.SIDECAR_PYTHON, "-m", "sidecar", "connect", url));
