import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

// Starts a cluster of three nodes; it ends with this process, however that ends.
export async function up(...options) {
  const [program, ...words] = (process.env.QUORUMLOG ?? "quorumlog").split(" ");
  const directory = mkdtempSync(join(tmpdir(), "quorumlog-"));
  const asked = ["up", "--dir", directory, "--port", "0", "--control", "0", "--json"];
  const started = spawn(program, [...words, ...asked, "--until-stdin-closes", ...options], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = new Promise((resolve) => started.on("exit", resolve));
  let text = "";
  for await (const chunk of started.stdout.iterator({ destroyOnReturn: false })) {
    text += chunk;
    if (text.endsWith("\n}\n")) break;
  }
  const { bootstrap, control } = JSON.parse(text);
  const ask = async (method, path, body) => {
    const headers = { Authorization: `Bearer ${control.token}` };
    const answer = await fetch(control.url + path, { method, headers, body: JSON.stringify(body) });
    const said = await answer.json();
    if (!answer.ok) throw new Error(`${path}: ${said.error}; ${said.hint}`);
    return said;
  };
  return {
    brokers: bootstrap.split(","),
    get: (path) => ask("GET", path),
    post: (path, body = {}) => ask("POST", path, body),
    down: () => (started.stdin.end(), ended),
  };
}
