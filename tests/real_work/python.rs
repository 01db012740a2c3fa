//! Python: a virtual environment without a network, pytest, processes and threads, SQLite.

use super::{MOUNTED_DIRECTORY, failing_lines, run_script, run_script_with_env, with_each_daemon};
use crate::support::{Setup, tools_directory};

with_each_daemon!(virtual_environment_installs_a_wheel, pytest_runs, the_standard_library_works);

/// Makes a wheel with nothing but the standard library, as a tool would.
const WHEEL: &str = r#"
import base64, hashlib, zipfile
files = {
    "sample/__init__.py": "def answer():\n    return 42\n",
    "sample/__main__.py": "from . import answer\ndef main():\n    print('answer', answer())\nif __name__ == '__main__':\n    main()\n",
    "sample-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n",
    "sample-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "sample-1.0.dist-info/entry_points.txt": "[console_scripts]\nsample = sample.__main__:main\n",
}
record = "".join(
    f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}\n"
    for name, text in files.items())
files["sample-1.0.dist-info/RECORD"] = record + "sample-1.0.dist-info/RECORD,,\n"
with zipfile.ZipFile("sample-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
"#;

async fn virtual_environment_installs_a_wheel(setup: Setup) {
    let daemon = setup.start().await;
    let script = "/usr/bin/python3 -c \"$WHEEL\"; /usr/bin/python3 -m venv env; . env/bin/activate; \
        pip install --quiet --no-index --disable-pip-version-check ./sample-1.0-py3-none-any.whl; sample; python -m sample; \
        pip list --disable-pip-version-check | grep sample; python -c 'import sys; print(sys.prefix, sys.executable)'; pip uninstall -qy sample; \
        ! python -m sample 2>/dev/null";
    let output = run_script_with_env(&daemon, script, &[("WHEEL", WHEEL)]).await;
    let expected =
        "answer 42\nanswer 42\nsample     1.0\n/workspace/env /workspace/env/bin/python\n";
    assert!(output.starts_with(expected), "{output}");
}

async fn pytest_runs(setup: Setup) {
    let daemon = setup.mounting_directory(&tools_directory().join("pytest")).start().await;
    let script = r#"
mkdir tests
cat > tests/test_sample.py <<'END'
import asyncio, multiprocessing, os, subprocess, sys
import pytest
def square(n): return n * n
def put(queue, semaphore):
    with semaphore:
        queue.put(os.getpid())
def test_pool():
    with multiprocessing.Pool(4) as pool:
        assert pool.map(square, range(100)) == [n * n for n in range(100)]
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_queue_and_semaphore(method):
    context = multiprocessing.get_context(method)
    queue, semaphore = context.Queue(), context.Semaphore(1)
    made = [context.Process(target=put, args=(queue, semaphore)) for _ in range(3)]
    for process in made: process.start()
    assert {queue.get(timeout=60) for _ in made} == {process.pid for process in made}
    for process in made: process.join()
def test_asyncio_subprocess():
    async def run():
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        return (await process.communicate(b"through"))[0]
    assert asyncio.run(run()) == b"through"
def test_files(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("A", "b")
    (tmp_path / "f").write_text("x")
    subprocess.run([sys.executable, "-c", "import os; print(os.environ['A'])"], check=True)
    assert capfd.readouterr().out == "b\n"
END
/usr/bin/python3 -m pytest -q -p no:cacheprovider | tail -1 | cut -d' ' -f1,2
/usr/bin/python3 -m pytest -q | tail -1 | cut -d' ' -f1,2
"#;
    let output = run_script_with_env(&daemon, script, &[("PYTHONPATH", MOUNTED_DIRECTORY)]).await;
    assert_eq!(output, "6 passed\n6 passed\n");
}

async fn the_standard_library_works(setup: Setup) {
    let daemon = setup.start().await;
    let script = r#"
cat > work.py <<'END'
import asyncio, concurrent.futures, ctypes, fcntl, getpass, grp, http.server, json, mmap, os, pathlib, pwd, select, signal, socket, sqlite3
import ssl, tempfile, threading, time, urllib.request, uuid, zoneinfo
from multiprocessing import shared_memory

# SQLite, with a log that lies in shared memory.
db = sqlite3.connect("x.db")
assert db.execute("pragma journal_mode = wal").fetchone() == ("wal",)
db.execute("create table t (n)")
with db: db.executemany("insert into t values (?)", ((n,) for n in range(1000)))
assert sqlite3.connect("x.db").execute("select sum(n) from t").fetchone() == (499500,)
# Shared memory, locks, maps.
block = shared_memory.SharedMemory(create=True, size=1 << 20); block.buf[0] = 1; block.close(); block.unlink()
with open("locked", "w") as file: fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX)
mapped = mmap.mmap(-1, 1 << 16); mapped.write(b"x"); mapped.close()
# A server on localhost, by name, and over a Unix socket.
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
    def log_message(self, *_): pass
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    class Server(http.server.ThreadingHTTPServer): address_family = family
    server = Server((address, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"[{address}]" if ":" in address else "localhost"
    assert urllib.request.urlopen(f"http://{host}:{server.server_port}").read() == b"hello"
    server.shutdown()
http.server.HTTPServer(("localhost", 80), Handler).server_close()  # its network is its own
one = socket.socket(socket.AF_UNIX); one.bind("/tmp/s"); one.listen(); two = socket.socket(socket.AF_UNIX); two.connect("/tmp/s")
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0)); udp.sendto(b"x", udp.getsockname()); assert udp.recv(9) == b"x"
# inotify(7) and signals.
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init(); assert libc.inotify_add_watch(watch, b".", 0x100) == 1
pathlib.Path("new").touch(); assert b"new" in os.read(watch, 4096)
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
# Who and where it is.
assert getpass.getuser() == pwd.getpwuid(os.getuid()).pw_name == grp.getgrgid(os.getgid()).gr_name == "agent"
assert socket.gethostbyname(socket.gethostname()) == "127.0.0.1" and socket.getservbyname("https") == 443
assert os.path.expanduser("~") == "/home/agent" and tempfile.gettempdir() == "/tmp"
assert zoneinfo.ZoneInfo("Europe/Paris") and uuid.uuid4() and len(os.listdir("/proc/self/task")) >= 1
assert len(ssl.create_default_context().get_ca_certs()) > 50
# Threads, and the threads of a pool of processes.
with concurrent.futures.ThreadPoolExecutor(32) as pool: assert sum(pool.map(len, ["x"] * 1000)) == 1000
with concurrent.futures.ProcessPoolExecutor(2) as pool: assert sum(pool.map(abs, range(-10, 0))) == 55
async def gathered(): return await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.001) for _ in range(50)))
assert len(asyncio.run(gathered())) == 50
reader, writer = os.openpty(); os.write(writer, b"x\n"); assert select.select([reader], [], [], 10)[0]
print(json.dumps({"done": True}))
END
/usr/bin/python3 work.py
"#;
    assert_eq!(run_script(&daemon, script).await, "{\"done\": true}\n");

    let lines = "/usr/bin/python3 -m compileall -q work.py
        /usr/bin/python3 -m timeit -n 1 pass
        /usr/bin/python3 -c 'import webbrowser, tkinter' || /usr/bin/python3 -c 'import curses, readline, lzma, bz2, dbm'
        /usr/bin/python3 -m zipfile -c z.zip work.py && /usr/bin/python3 -m zipfile -l z.zip
        /usr/bin/python3 -m unittest --help > /dev/null";
    assert_eq!(failing_lines(&daemon, lines).await, [""; 0]);
}
