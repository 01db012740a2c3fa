import { execFile, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { lstat, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http2";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { create, toBinary } from "@bufbuild/protobuf";
import { reasons } from "jig-client";
import { expect, onTestFinished, test } from "vitest";
import { DownloadTreeResponseSchema } from "../src/gen/jig/v1/transfer_service_pb.js";
import { connect, makeRoot } from "./support.js";

const run = promisify(execFile);

async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "jig-test-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return directory;
}

test("trees survive both directions", async () => {
  const client = connect();
  const directory = await temporaryDirectory();
  const source = join(directory, "source");
  const archive = join(directory, "archive");
  const back = join(directory, "back");
  await mkdir(join(source, "d", "empty"), { recursive: true });
  await mkdir(back);
  await writeFile(join(source, "a"), "hello");
  await writeFile(join(source, "d", "run"), Buffer.alloc(700_000, "x"), { mode: 0o755 });
  await symlink("../a", join(source, "d", "up"));
  const root = await makeRoot(client);

  const { stdout } = spawn("tar", ["-c", "-C", source, "."]);
  const uploaded = await client.uploadTree(stdout, root);
  expect(uploaded).toMatchObject({ files: 2, directories: 2, symlinks: 1 });
  const downloaded = await client.downloadTree(root, archive);
  expect(downloaded).toMatchObject({ files: 2, symlinks: 1, problems: [] });
  await run("tar", ["-xf", archive, "-C", back]);
  await run("diff", ["-r", "--no-dereference", source, back]);
  expect((await lstat(join(back, "d", "run"))).mode & 0o777).toBe(0o755);

  // The archive of one direction is accepted in the other.
  expect((await client.uploadTree(archive, `${root}/again`)).files).toBe(2);
  const filtered = await client.downloadTree(root, archive, { exclude: ["d"], maxFileBytes: 4 });
  expect(filtered).toMatchObject({ files: 0, directories: 1 });
});

test("failed copies of trees name the member, and leave nothing", async () => {
  const client = connect();
  const directory = await temporaryDirectory();
  const root = await makeRoot(client);
  await writeFile(join(directory, "x"), "");
  await symlink("../../out", join(directory, "y"));
  const { stdout: archive } = await run("tar", ["-c", "-C", directory, "x", "y"], {
    encoding: "buffer",
  });
  const hostile = await client.uploadTree(archive, root).catch((error) => error);
  expect(hostile).toBeInstanceOf(reasons.PathEscape);
  expect(hostile.metadata).toMatchObject({ member: "y", extracted_members: "1" });
  const existing = client.uploadTree(archive, root, { mode: "CREATE_NEW" });
  await expect(existing).rejects.toThrow(reasons.FileExists);
  const damaged = client.uploadTree(Buffer.alloc(1000, "no archive"), root);
  await expect(damaged).rejects.toThrow(reasons.InvalidArchive);
  await expect(client.uploadTree(join(directory, "none"), root)).rejects.toThrow("ENOENT");
  // A directory can be opened, but not read.
  await expect(client.uploadTree(directory, root)).rejects.toThrow("EISDIR");

  const absent = client.downloadTree("none", join(directory, "target"));
  await expect(absent).rejects.toThrow(reasons.DirectoryNotFound);
  const unwritable = client.downloadTree(root, join(directory, "none", "target"));
  await expect(unwritable).rejects.toThrow("ENOENT");
  expect((await readdir(directory)).sort()).toEqual(["x", "y"]);
});

function message(data: Buffer, sha256?: string): Uint8Array {
  const summary = sha256 === undefined ? undefined : { sha256 };
  const response = create(DownloadTreeResponseSchema, { data, summary });
  return toBinary(DownloadTreeResponseSchema, response);
}

test("damaged archives are errors", async () => {
  const end = Buffer.from("{}");
  let messages: Uint8Array[] = [];
  const server = createServer();
  server.on("stream", (stream) => {
    const envelope = (flags: number, value: Uint8Array) => {
      const header = Buffer.alloc(5);
      header.writeUInt8(flags);
      header.writeUInt32BE(value.length, 1);
      return Buffer.concat([header, value]);
    };
    stream.respond({ ":status": 200, "content-type": "application/connect+proto" });
    stream.end(Buffer.concat([...messages.map((value) => envelope(0, value)), envelope(2, end)]));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => new Promise<void>((resolve) => server.close(() => resolve())));
  const client = connect({}, `127.0.0.1:${(server.address() as AddressInfo).port}`);
  const directory = await temporaryDirectory();
  const target = join(directory, "target");
  const data = Buffer.from("some bytes");
  const right = createHash("sha256").update(data).digest("hex");

  for (messages of [
    [],
    [message(data)],
    [message(data, "0".repeat(64))],
    [message(data, right), message(data)],
  ]) {
    const damaged = client.downloadTree("t", target);
    await expect(damaged).rejects.toThrow(reasons.ChecksumMismatch);
  }
  expect(await readdir(directory)).toEqual([]);
  messages = [message(data), message(Buffer.alloc(0), right)];
  await client.downloadTree("t", target);
  expect(data.equals(await readFile(target))).toBe(true);
  await client.close();
});
