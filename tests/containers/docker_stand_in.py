"""A stand-in for `docker`, NOT docker: as much of its client's language as autotune speaks, for tests.

Containers are processes of this machine under a shim of their own (as containerd's), so they outlive the client and
whoever started it. Nothing is isolated: a port is published by telling the program to listen there, a file is mounted
by telling it the file's name here. State lies in $DOCKER_STAND_IN; a file `fault` in it makes the client fail as docker
does (FAULTS).
"""

# ruff: noqa: ANN001, ANN201, C901, PLR0912, T201  a small program, not part of the package
# mypy: ignore-errors

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["DOCKER_STAND_IN"])
IMAGE = "sha256:" + "5" * 64
FAULTS = {  # what docker 28 and its daemon say, and the exit code of `run`
    "daemon": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    "permission": "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
    "gpu": 'Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    "slow": "",  # `run` creates the container, and hangs
}
TAKES_VALUE = {
    "--cpus", "--device", "--entrypoint", "--env", "--gpus", "--label", "--log-driver", "--memory", "--network",
    "--publish", "--shm-size", "--ulimit", "--volume", "--workdir", "--ipc",
}  # fmt: skip


def fail(text, code=125):
    sys.stderr.write(f"docker: {text}\n" if code >= 125 else f"{text}\n")
    sys.exit(code)


def fault():
    path = HOME / "fault"
    return path.read_text().strip() if path.exists() else ""


def read(identity):
    try:
        return json.loads((HOME / identity / "state.json").read_text())
    except OSError:
        fail(f"Error response from daemon: No such container: {identity}", 1)


def write(state):
    path = HOME / state["Id"] / "state.json"
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(state))
    fresh.replace(path)


def parse(words):
    """Options (name -> values) and the rest, from the image on."""
    options, words = {}, list(words)
    while words and words[0].startswith("-"):
        name, given, value = words.pop(0).partition("=")
        if name not in TAKES_VALUE | {"--detach", "--interactive", "--rm", "--pull", "--init", "--privileged"}:
            fail(f"unknown flag: {name}\n\nRun 'docker run --help' for more information")
        if name in TAKES_VALUE and not given:
            value = words.pop(0)
        options.setdefault(name, []).append(value)
    return options, words


def run(words):
    options, (image, *arguments) = parse(words)
    if image not in (IMAGE, "local/engine"):
        fail(f"Error response from daemon: No such image: {image}")
    if fault() == "gpu" and "--gpus" in options:
        fail(FAULTS["gpu"])
    for mount in options.get("--volume", []):
        if mount.startswith("/") and not Path(mount.split(":")[0]).exists():
            why = f'invalid mount config for type "bind": bind source path does not exist: {mount}'
            fail(f"Error response from daemon: {why}")
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in options.get("--volume", [])}
    command = [mounts.get(word, word) for word in (*options["--entrypoint"], *arguments)]
    for published in options.get("--publish", []):
        command = told_to_listen(command, *published.split(":"))
    environment = {"PATH": os.environ["PATH"], "DOCKER_STAND_IN": str(HOME)}
    for entry in options.get("--env", []):
        name, given, value = entry.partition("=")
        if given or name in os.environ:
            environment[name] = value if given else os.environ[name]
    identity = secrets.token_hex(32)
    (HOME / identity).mkdir()
    state = {
        "Id": identity, "Command": command, "Labels": dict(label.split("=", 1) for label in options.get("--label", [])),
        "Ports": options.get("--publish", []), "Env": environment, "Options": options,
        "State": {"Status": "created", "Running": False, "Pid": 0, "ExitCode": 0, "OOMKilled": False},
    }  # fmt: skip
    write(state)
    if fault() == "slow":
        time.sleep(600)
    shim(state, interactive="--interactive" in options)
    while read(identity)["State"]["Status"] == "created":
        time.sleep(0.01)
    if read(identity)["State"]["Status"] == "refused":
        fail(f'Error response from daemon: exec: "{command[0]}": executable file not found in $PATH: unknown.', 127)
    if "--interactive" in options:
        code = wait(identity)
        remove(identity)
        sys.exit(code)
    print(identity)


def told_to_listen(command, host, port, inside):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            fail(f"Error response from daemon: Bind for {host}:{port} failed: port is already allocated.")
    return [{inside: port, "0.0.0.0": host}.get(word, word) for word in command]


def shim(state, interactive):
    """Leave a process behind, no child of this one, that starts the program and writes how it ended."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    folder = HOME / state["Id"]
    with (folder / "log").open("ab", buffering=0) as log:
        streams = {} if interactive else {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        try:
            child = subprocess.Popen(state["Command"], env=state["Env"], cwd="/", start_new_session=True, **streams)
        except OSError:
            state["State"]["Status"] = "refused"
            write(state)
            os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the client's pipes end with the client
        os.dup2(null, descriptor)
    state["State"] |= {"Status": "running", "Running": True, "Pid": child.pid}
    write(state)
    code = child.wait()
    oom = (folder / "oom").exists()
    state["State"] |= {"Status": "exited", "Running": False, "Pid": 0, "OOMKilled": oom}
    state["State"]["ExitCode"] = code if code >= 0 else 128 - code
    if folder.exists():
        write(state)
    os._exit(0)


def wait(identity):
    while True:
        state = read(identity)["State"]
        if state["Status"] == "exited":
            return state["ExitCode"]
        time.sleep(0.02)


def signal_to(identity, number):
    pid = read(identity)["State"]["Pid"]
    if not pid:
        return False
    try:
        os.killpg(pid, number) if number == signal.SIGKILL else os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def stop(words):
    grace_s, identity = float(words[1]), words[2]
    signal_to(identity, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while read(identity)["State"]["Running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    signal_to(identity, signal.SIGKILL)
    wait(identity)
    print(identity)


def remove(identity):
    if not (HOME / identity / "state.json").exists():
        fail(f"Error response from daemon: No such container: {identity}", 1)
    signal_to(identity, signal.SIGKILL)
    if read(identity)["State"]["Status"] == "running":
        wait(identity)
    for path in (HOME / identity).iterdir():
        path.unlink()
    (HOME / identity).rmdir()


def logs(identity):
    read(identity)
    with (HOME / identity / "log").open("rb", buffering=0) as log:
        while True:
            ended = not (HOME / identity / "state.json").exists() or read(identity)["State"]["Status"] == "exited"
            if chunk := log.read(65536):
                os.write(1, chunk)
            elif ended:
                return
            else:
                time.sleep(0.02)


def containers(label):
    for path in sorted(HOME.glob("*/state.json")):
        state = json.loads(path.read_text())
        name, _, value = label.partition("=")
        if state["Labels"].get(name) == value:
            print(state["Id"])


def inspect(form, identity):
    state = read(identity)
    if form == "{{json .State}}":
        print(json.dumps(state["State"]))
    else:  # {{index .Config.Labels "name"}}
        print(state["Labels"].get(form.split('"')[1], ""))


def main(words):
    if words == ["--version"]:
        print("Docker version 0.0 (a stand-in), build none")
        return
    if fault() in ("daemon", "permission"):
        fail(FAULTS[fault()], 125 if words[0] == "run" else 1)
    match words:
        case ["run", *rest]:
            run(rest)
        case ["image", "inspect", "--format", _, name]:
            if name not in (IMAGE, "local/engine") and not (HOME / f"pulled-{name}").exists():
                fail(f"Error response from daemon: No such image: {name}", 1)
            print(IMAGE, "local/engine@sha256:" + "6" * 64)
        case ["ps", "-a", "-q", "--no-trunc", "--filter", condition]:
            containers(condition.removeprefix("label="))
        case ["inspect", "--type", "container", "--format", form, identity]:
            inspect(form, identity)
        case ["wait", identity]:
            print(wait(identity))
        case ["logs", "--follow", identity]:
            logs(identity)
        case ["stop", "-t", *_]:
            stop(words[1:])
        case ["kill", identity]:
            if not signal_to(identity, signal.SIGKILL):
                fail(f"Error response from daemon: container {identity} is not running", 1)
        case ["rm", *_, identity]:
            remove(identity)
        case ["port", identity, inside]:
            for published in read(identity)["Ports"]:
                host, port, told = published.split(":")
                if f"{told}/tcp" == inside:
                    print(f"{host}:{port}")
        case ["exec", _, *command]:
            sys.exit(subprocess.run(command, check=False).returncode)
        case ["pull", name]:
            if name.startswith("no-such"):
                fail(f"Error response from daemon: manifest for {name} not found: manifest unknown", 1)
            (HOME / f"pulled-{name}").touch()
            print("pulled")
        case _:
            fail(f"the stand-in doesn't speak: {words}", 1)


main(sys.argv[1:])
