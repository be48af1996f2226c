"""Small programs that stand in for engines, and how tests wait for what they do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

DEADLINE_S = 20.0


def python(code: str) -> list[str]:
    """Command line of a program."""
    return [sys.executable, "-c", code]


def wait_until(condition: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Wait for something observable. Raises AssertionError after `deadline_s`."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def wait_for_lines(path: Path, count: int = 1) -> list[str]:
    """The lines of a file once it has `count` of them."""
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= count, f"{count} lines in {path.name}")
    return path.read_text().splitlines()


def gone(pid: int) -> bool:
    """True when no such process runs; a zombie is as good as gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ignoring", flush=True)
time.sleep(600)
"""

ENDS_ON_SIGTERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("waiting", flush=True)
time.sleep(600)
"""

LEAVES_THE_GROUP = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
if os.fork() == 0:                      # a child that makes an orphan in a session of its own, and ends
    orphan = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
    orphan.stdout.readline()
    print("orphan", orphan.pid, flush=True)
    os._exit(0)
os.wait()
print("parent", os.getpid(), flush=True)
time.sleep(600)
"""

KEEPS_SHARED_MEMORY = """
import signal, sys, time
from multiprocessing import resource_tracker, shared_memory
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
block = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(block._name, "shared_memory")
print(block.name, flush=True)
time.sleep(600)
"""

ENGINE = """
import http.server, json, os, signal, socket, sys, threading, time
mode = os.environ.get("FAKE_MODE", "")
port = int(sys.argv[sys.argv.index("--port") + 1])
def say(text):
    print(text, flush=True)
say("token is " + os.environ.get("FAKE_TOKEN", "absent"))
if mode == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("INFO Starting to load model x...")
    time.sleep(600)
if mode == "exit":
    say("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`")
    say("RuntimeError: Engine core initialization failed. See root cause above.")
    sys.exit(1)
healthy_at = time.monotonic() + 0.6
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            self.send_response(200 if time.monotonic() > healthy_at else 503)
            body = b""
        else:
            self.send_response(200)
            served = json.dumps({"data": [{"id": "served-name", "max_model_len": 512}]})
            model = os.environ.get("FAKE_MODELS", served)
            body = model.encode() if self.path == "/v1/models" else b'vllm:n_total{a="1"} 2\\nvllm:n_total{a="2"} 3\\n'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
say("(APIServer pid=1) INFO 11-30 10:00:00 [a.py:1] Starting to load model x...")
say("(APIServer pid=1) WARNING 11-30 10:00:00 [a.py:2] prefix caching is off for this model")
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler, bind_and_activate=False)
server.server_bind()
time.sleep(0.4)  # bound, not listening: what vLLM does while its model loads
server.server_activate()
if mode == "dies":
    threading.Timer(1.5, lambda: os._exit(0)).start()
server.serve_forever()
"""
"""Takes `serve MODEL … --port P` as vLLM does; FAKE_MODE: hang, exit, dies (with code 0, as vLLM does)."""
