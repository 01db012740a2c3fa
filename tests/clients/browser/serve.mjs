// Serves the pages of this directory on two ports of 127.0.0.1, which are two origins, and prints the origins in one line.
//
// Arguments: the directory of the pages' packages, and a file with the descriptors of the contract.

import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const [packages, descriptors] = process.argv.slice(2);
const types = { ".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript" };

function fileOf(path) {
  if (path === "/contract.binpb") return descriptors;
  // Parts `..` of the path end at its root.
  path = normalize(path);
  return path.startsWith("/packages/") ? join(packages, path.slice("/packages".length)) : join(import.meta.dirname, path);
}

async function listen() {
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://page");
    if (pathname === "/finish") finish();
    // An image of the page: Chromium prints the page when its images have loaded.
    if (pathname === "/held") await finished;
    if (pathname === "/finish" || pathname === "/held") return response.writeHead(204).end();
    try {
      const content = await readFile(fileOf(pathname));
      response.writeHead(200, { "content-type": types[extname(pathname)] ?? "application/octet-stream" }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${server.address().port}`;
}

console.log(await listen(), await listen());
