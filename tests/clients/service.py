"""phasepipe's services for the client checks: `phasepipe up` without HTTP in a temporary folder, and any number of HTTP servers
(`stream --http`) that use these services, on free ports."""

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


class Failed(Exception):
    pass


def program(name):
    """Path of a program: in $PHASEPIPE_BIN, $B/bin or build/bin if it is there, else in PATH."""
    folder = os.environ.get("PHASEPIPE_BIN") or os.path.join(
        os.environ.get("PHASEPIPE_BUILD") or os.path.join(ROOT, os.environ.get("B", "build")), "bin")
    path = os.path.join(folder, name)
    path = path if os.access(path, os.X_OK) else shutil.which(name)
    if not path:
        raise Failed(f"{name} is not built: make")
    return os.path.abspath(path)


class Process:
    """A phasepipe program. The constructor blocks until its readiness message arrives on --ready-fd."""

    def __init__(self, cmd, log, seconds=120):
        self.log = log
        r, w = os.pipe()
        with open(log, "ab") as out:
            self.p = subprocess.Popen([*cmd, "--ready-fd", str(w)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                      pass_fds=(w,))
        os.close(w)
        with os.fdopen(r, "rb", buffering=0) as f:
            ready = select.select([f], [], [], seconds)[0] and f.read(4096)  # one write
        if not (ready or b"").startswith(b"ready\n"):
            self.stop(1)
            raise Failed(f"{' '.join(cmd)}: not ready within {seconds} s\n{self.output()[-2000:]}")
        self.addresses = dict(line.split("=", 1) for line in ready.decode().splitlines()[1:])

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self, seconds=10):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try:
                self.p.wait(seconds)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        return self.p.returncode


class Server(Process):
    """stream --http; url and ollama are the URLs at which it listens."""

    def __init__(self, services, name, *options, ollama=False):
        cmd = [program("stream"), "--run", services.run, "-m", services.model, "--http", "127.0.0.1:0",
               "--drain-seconds", "2", *options]
        if ollama:
            cmd += ["--ollama", "127.0.0.1:0"]
        super().__init__(cmd, os.path.join(services.folder, f"{name}.log"))
        if len(self.addresses) != 1 + ollama:
            self.stop()
            raise Failed(f"{name}: reports the addresses {self.addresses}\n{self.output()}")
        self.url, self.ollama = self.addresses["HTTP"], self.addresses.get("OLLAMA", "")


class Services:
    def __init__(self, model, *options):
        self.model = model
        self.folder = tempfile.mkdtemp(prefix="clients.")
        self.run = os.path.join(self.folder, "run")
        self.servers = []
        up = subprocess.run([program("phasepipe"), "up", "-m", model, "--run", self.run, "--http", "off", "--ollama", "off",
                             "--detach", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=180)
        if up.returncode != 0:
            raise Failed(f"phasepipe up: exit {up.returncode}\n{up.stdout[-2000:]}{self.logs()}")

    def server(self, name, *options, ollama=False):
        self.servers.append(Server(self, name, *options, ollama=ollama))
        return self.servers[-1]

    def logs(self):
        """The logs of the HTTP servers."""
        return "".join(f"{os.path.basename(s.log)}: {line}\n" for s in self.servers for line in s.output().splitlines())

    def close(self):
        for s in self.servers:
            s.stop()
        subprocess.run([program("phasepipe"), "down", "--run", self.run], stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
        for _ in range(50):  # services still unlink their sockets
            try:
                shutil.rmtree(self.folder)
                return
            except OSError:
                time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
