"""A real OpenSSH server on this machine, for tests of remote runs."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

import psutil

from tests.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[1]
HOST: Final = "gpu-box"
_SSHD: Final = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
is_available: Final = bool(_SSHD and shutil.which("ssh") and shutil.which("ssh-keygen"))


class SshServer:
    """sshd with its own port, keys and configuration; `command` is the ssh that reaches it as `gpu-box`.

    `options`: further lines of its configuration.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        for name in ("host_key", "user_key", "other_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        host_key = (folder / "host_key.pub").read_text(encoding="utf-8")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}", encoding="utf-8")
        server = f"""
            ListenAddress 127.0.0.1
            Port {self.port}
            HostKey {folder}/host_key
            AuthorizedKeysFile {folder}/authorized_keys
            PidFile {folder}/sshd.pid
            PermitRootLogin yes
            StrictModes no
            UsePAM no
            PasswordAuthentication no
            """ + "\n".join(options)
        (folder / "sshd_config").write_text(server, encoding="utf-8")
        self.command = self.write_client("user_key")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires it
        self.start()

    def write_client(self, key: str, known_hosts: str = "known_hosts") -> str:
        """An ssh command with another key, or that does not know the server."""
        client = f"""
            Host {HOST}
                HostName 127.0.0.1
                Port {self.port}
                User {getpass.getuser()}
                IdentityFile {self._folder}/{key}
                IdentitiesOnly yes
                UserKnownHostsFile {self._folder}/{known_hosts}
            """
        config = self._folder / f"config-{key}-{known_hosts}"
        config.write_text(client, encoding="utf-8")
        return f"ssh -F {config}"

    def start(self) -> None:
        assert _SSHD
        log = str(self._folder / "sshd.log")
        arguments = [_SSHD, "-D", "-f", str(self._folder / "sshd_config"), "-E", log]
        self._process = psutil.Popen(arguments, stdin=subprocess.DEVNULL)
        wait_until(lambda: "listening" in Path(log).read_text(encoding="utf-8") if Path(log).exists() else False)

    def cut(self) -> int:
        """Kill all connections, but not what they have started. Returns their number."""
        sessions = self._process.children()
        for session in sessions:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = [child for child in session.children(recursive=True) if child.name().startswith("sshd")]
                session.kill()
                for child in children:
                    child.kill()
        return len(sessions)

    def stop(self) -> None:
        """Stop listening and kill all connections."""
        self.cut()
        self._process.kill()
        self._process.wait()


def install(folder: Path) -> Path:
    """Make a folder with Traindeck and its environment, as a clone has them."""
    folder.mkdir(parents=True)
    for name in ("app", "launcher", "presets", "trainer_core", "train_gpu.py", "train_gpu.sh", ".venv"):
        (folder / name).symlink_to(ROOT / name)
    return folder
