"""What this process asks of the system."""

import platform
import subprocess
import sys

import pytest

THREAD = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from alimark.core._util import process

def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) // 1024

def work():
    for _ in range(3):
        block = bytearray(30 << 20)
        del block

process.give_back_memory()
with ThreadPoolExecutor(1) as pool:
    before = resident()
    pool.submit(work).result()
    print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_thread_gives_freed_memory_back() -> None:
    done = subprocess.run([sys.executable, "-c", THREAD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5, "MB; the C library by itself keeps all 30"
