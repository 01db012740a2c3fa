import { createReadStream } from "node:fs";
import { link, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ConfigurationError, reasons } from "jig-client";
import { expect, inject, onTestFinished, test } from "vitest";
import { collect, connect, makeRoot, text } from "./support.js";

async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return directory;
}

const patchOf = (path: string) =>
  `--- a/${path}\n+++ b/${path}\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n`;

test("read and write", async () => {
  const client = connect();
  const path = `${await makeRoot(client)}/new/a.txt`;
  const content = "one\ntwo\nthree\n";
  const written = await client.writeFile(path, content, { mode: "CREATE_NEW", fileMode: 0o755 });
  expect(written).toMatchObject({ created: true, bytesWritten: 14 });
  const read = await client.readFile(path, { startLine: 2, endLine: 2 });
  expect(read).toMatchObject({ content: "two\n", totalLines: 3, sha256: written.sha256 });
  const info = await client.stat(path);
  expect(info).toMatchObject({ type: "FILE", mode: 0o755, sizeBytes: 14 });
  expect(info.modifyTime).toBeInstanceOf(Date);

  const again = client.writeFile(path, "", { mode: "CREATE_NEW" });
  await expect(again).rejects.toThrow(reasons.FileExists);
  const stale = client.writeFile(path, "", { expectedSha256: "0".repeat(64) });
  await expect(stale).rejects.toThrow(reasons.StaleFile);
  await expect(client.readFile(path, { startLine: 10 })).rejects.toThrow(reasons.LineRangeInvalid);
  await client.writeFile(path, Uint8Array.of(255, 0));
  await expect(client.readFile(path)).rejects.toThrow(reasons.BinaryFile);
  expect((await client.readFile(path, { encoding: "BASE64" })).content).toBe("/wA=");
  const large = new Uint8Array(100_000).map((_, index) => index);
  await client.writeFile(path, large);
  expect(await client.readBytes(path)).toEqual(large);
  const unknown = client.writeFile(path, "", { mode: "TRUNCATE" as never });
  await expect(unknown).rejects.toThrow(ConfigurationError);
  await expect(client.readFile("../etc/passwd")).rejects.toThrow(reasons.PathEscape);
});

test("edit and patch", async () => {
  const client = connect();
  const path = `${await makeRoot(client)}/b.txt`;
  await client.writeFile(path, "one\ntwo\n");
  const edits = [{ oldString: "one", newString: "1", occurrence: "ALL" }] as const;
  expect((await client.editFile(path, edits, { dryRun: true })).diff).toContain("+1");
  const absent = client.editFile(path, [{ oldString: "absent", newString: "x" }]);
  await expect(absent).rejects.toThrow(reasons.StringNotFound);
  const patched = await client.applyPatch(patchOf(path));
  expect(patched.changedFiles).toMatchObject([{ path, change: "MODIFIED" }]);
  expect(text(await client.readBytes(path))).toBe("one\nthree\n");
  await expect(client.applyPatch(patchOf(path))).rejects.toThrow(reasons.PatchHunkFail);
});

test("lists", async () => {
  const client = connect();
  const root = await makeRoot(client);
  for (const name of ["a.py", "b.txt", "sub/c.py"]) {
    await client.writeFile(`${root}/${name}`, "text\n");
  }
  expect((await client.listFiles(root)).files).toEqual(["a.py", "b.txt", "sub/c.py"]);
  const matching = await client.listFiles(root, { glob: "*.py", maxDepth: 1 });
  expect(matching.files).toEqual(["a.py"]);
  const limited = await client.listFiles(root, { maxResults: 2 });
  expect(limited).toMatchObject({ files: ["a.py", "b.txt"], truncated: true });
  const listing = await client.listDir(root);
  expect(listing.entries.map(({ name, type }) => [name, type])).toEqual([
    ["a.py", "FILE"],
    ["b.txt", "FILE"],
    ["sub", "DIRECTORY"],
  ]);
  const absent = client.listDir("no-such-directory");
  await expect(absent).rejects.toThrow(reasons.DirectoryNotFound);
});

test("long lists have all pages", async () => {
  const client = connect();
  const root = await makeRoot(client);
  const directory = join(inject("workspace"), root);
  await writeFile(join(directory, "00000"), "");
  for (let number = 1; number <= 10_001; number += 1) {
    await link(join(directory, "00000"), join(directory, String(number).padStart(5, "0")));
  }
  expect((await client.listFiles(root)).files.length).toBe(10_002);
  const limited = await client.listFiles(root, { maxResults: 10_001 });
  expect([limited.files.length, limited.truncated]).toEqual([10_001, true]);
  expect((await client.listDir(root)).entries.length).toBe(10_002);
  expect((await client.deletePath(root, { recursive: true })).deletedCount).toBe(10_003);
});

test("search", async () => {
  const client = connect();
  const root = await makeRoot(client);
  await client.writeFile(`${root}/a.txt`, "x\nneedle 1\ny\n");
  await client.writeFile(`${root}/b.md`, "needle 2\n");
  const options = { isRegex: true, path: root, globs: ["*.txt"], contextLines: 1 };
  const { matches } = await client.search("needle \\d", options);
  expect(matches).toMatchObject([{ file: `${root}/a.txt`, line: 2, contextBefore: ["x"] }]);
  await expect(client.search("(", { isRegex: true })).rejects.toThrow(reasons.InvalidRegex);
});

test("move, delete and exists", async () => {
  const client = connect();
  const root = await makeRoot(client);
  await client.writeFile(`${root}/a`, "");
  await client.movePath(`${root}/a`, `${root}/b`);
  const found = ["a", "b", "b/c"].map((name) => client.exists(`${root}/${name}`));
  expect(await Promise.all(found)).toEqual([false, true, false]);
  await expect(client.deletePath(root)).rejects.toThrow(reasons.DirectoryNotEmpty);
  await expect(client.exists("../x")).rejects.toThrow(reasons.PathEscape);
});

test("notebooks", async () => {
  const client = connect();
  const path = `${await makeRoot(client)}/n.ipynb`;
  await client.writeFile(path, '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}');
  await client.editNotebook(path, { mode: "INSERT", cellType: "CODE", source: "1 + 1" });
  const { cells } = await client.readNotebook(path);
  expect(cells).toMatchObject([{ type: "CODE", source: "1 + 1" }]);
  expect(cells[0]?.executionCount).toBeUndefined();
});

test("pages need allowed hosts", async () => {
  const error = await connect()
    .fetchUrl("https://example.org/")
    .catch((error) => error);
  expect(["UNKNOWN_TOOL", "EGRESS_DENIED", "TOOL_DISABLED"]).toContain(error.reason);
});

test("copies of any size", async () => {
  const client = connect();
  const directory = await temporaryDirectory();
  const content = Buffer.alloc(5 << 20, "0123456789abcdef\n");
  const source = join(directory, "source");
  await writeFile(source, content);
  const path = `${await makeRoot(client)}/copy`;
  const uploaded = await client.upload(source, path, { fileMode: 0o755 });
  expect(uploaded).toMatchObject({ created: true, receivedBytes: content.length });
  expect(content.equals(await client.readBytes(path))).toBe(true);
  const range = await client.readBytes(path, { offset: 5, limit: 700_000 });
  expect(content.subarray(5, 700_005).equals(range)).toBe(true);
  expect((await collect(client.readChunks(path, { offset: 1 }))).length).toBeGreaterThan(1);

  const target = join(directory, "back");
  const downloaded = await client.download(path, target);
  expect([downloaded.sizeBytes, downloaded.data.length]).toEqual([content.length, 0]);
  expect(content.equals(await readFile(target))).toBe(true);
  expect((await stat(target)).mode & 0o100).toBe(0o100);

  for (const other of [createReadStream(source), new Blob([content]).stream()]) {
    expect((await client.upload(other, path)).sha256).toBe(uploaded.sha256);
  }
  await client.upload(new Uint8Array(), path);
  expect((await client.readBytes(path)).length).toBe(0);
  await client.download(path, target);
  expect((await readFile(target)).length).toBe(0);
});

test("failed copies leave nothing", async () => {
  const client = connect();
  const directory = await temporaryDirectory();
  const absent = client.download("no-such-file", join(directory, "target"));
  await expect(absent).rejects.toThrow(reasons.FileNotFound);
  expect(await readdir(directory)).toEqual([]);
  await expect(client.upload(join(directory, "none"), "x")).rejects.toThrow("ENOENT");
  await expect(client.upload(Uint8Array.of(1), "../x")).rejects.toThrow(reasons.PathEscape);
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield Uint8Array.of(1);
    throw new Error("the source broke");
  }
  await expect(client.upload(broken(), "x")).rejects.toThrow("the source broke");
});
