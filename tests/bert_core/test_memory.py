"""Freed blocks go back to the kernel or stay, as asked for."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from bert_core.memory import keep_freed_memory, return_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.zeros(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert return_freed_memory()
faults()
returned = faults()
assert keep_freed_memory()
faults()
print(returned, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, which it asks")
def test_kept_blocks_cost_no_fresh_pages():
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    returned, kept = map(int, output.split())
    assert returned > 100  # ten times 32 MiB, be its pages as large as they will
    assert kept < returned / 10
