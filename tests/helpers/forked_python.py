"""A `python` whose processes are forked from one that has imported JAX and this package: that takes most of a small command."""

import os
import subprocess
import sys
import time
from pathlib import Path

CLIENT = """#!{python} -IS
import os, signal, socket, sys
words = sys.argv[1:]
if not words or words[0][0] == "-" and words[0] != "-m":
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
message = repr((words, os.getcwd(), dict(os.environ))).encode()
socket.send_fds(server, [len(message).to_bytes(4)], [0, 1, 2])
server.sendall(message)
child = int.from_bytes(server.recv(4))
for name in ("TERM", "INT", "USR1"):
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: os.kill(child, number))
sys.exit(int.from_bytes(server.recv(4)))
"""

SERVER = """
import ast, atexit, importlib, os, runpy, signal, socket, sys, threading, traceback
import jax, flax, optax, orbax.checkpoint, sentencepiece, sacrebleu
for name in sys.argv[2:]:
    importlib.import_module(name)

def run(words):
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        return 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException:
        traceback.print_exc()
        return 1

def serve(client):
    size, files, _, _ = socket.recv_fds(client, 4, 3)
    size, message = int.from_bytes(size), b""
    while len(message) < size:
        message += client.recv(size - len(message))
    words, folder, variables = ast.literal_eval(message.decode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        client.sendall(child.to_bytes(4))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.sendall((code if code >= 0 else 128 - code).to_bytes(4))
        os._exit(0)
    client.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    code = run(words)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1] + ".new")
listening.listen()
os.rename(sys.argv[1] + ".new", sys.argv[1])  # who finds it can connect
while True:
    client, _ = listening.accept()
    if not os.fork():
        listening.close()
        serve(client)
    client.close()
"""


class ForkedPython:
    """Context in which `program`, the file `folder/python`, is like Python for `-m MODULE ...` and `FILE ...`; the PATH `path` finds
    it first. environment: of the server, from which JAX's variables are; all others are the client's. modules: of this
    package, that the server imports; without, each process imports those of its folder.
    """

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        modules: tuple[str, ...] = ("t2t_flax.jobs", "t2t_flax.evaluation.restore"),
    ):
        folder.mkdir()
        self._modules = modules
        self._environment, self._address, self.program = environment, folder / "socket", folder / "python"
        self.path = f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.program.write_text(CLIENT.format(python=sys.executable, address=str(self._address)))
        self.program.chmod(0o755)

    def __enter__(self):
        self._server = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVER, str(self._address), *self._modules],
            env=self._environment,
            cwd=self._address.parent,
        )
        while not self._address.exists():
            assert self._server.poll() is None
            time.sleep(0.02)
        return self

    def __exit__(self, *error):
        self._server.kill()
        self._server.wait()
