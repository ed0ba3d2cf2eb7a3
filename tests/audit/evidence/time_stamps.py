"""An authority of time stamps on loopback, which `openssl ts` answers for."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

_SETTINGS = """
[ req ]
distinguished_name = name
x509_extensions = stamps
prompt = no
[ name ]
CN = authority
[ stamps ]
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[ tsa ]
default_tsa = local
[ local ]
serial = serial
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256, sha512
"""


def certificate(folder: Path) -> Path:
    """Makes an authority in a folder and returns its certificate, which signed itself."""
    (folder / "tsa.cnf").write_text(_SETTINGS)
    (folder / "serial").write_text("01\n")
    words = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out root.pem -days 2 -config tsa.cnf"
    _openssl(folder, *words.split())
    return folder / "root.pem"


@contextmanager
def authority(folder: Path) -> Iterator[tuple[str, Path]]:
    """The address of an authority that answers until the block ends, and its certificate."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    root = certificate(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            (folder / "query").write_bytes(self.rfile.read(int(self.headers["content-length"])))
            words = "ts -reply -config tsa.cnf -queryfile query -signer root.pem -inkey key.pem -out reply"
            _openssl(folder, *words.split())
            self.send_response(200)
            self.end_headers()
            self.wfile.write((folder / "reply").read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", root
        server.shutdown()


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)
