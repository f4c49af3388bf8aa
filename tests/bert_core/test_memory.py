"""Freed blocks go back to the kernel or stay, as asked for.

Whether the padding keeps a thread's empty heap is not among what is shown here: that depends on
how the blocks of a training step come to lie (docs/log.md).
"""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys
import threading
import torch
from bert_core.backends.context import keep_freed_memory, return_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [torch.zeros(10 << 20) for _ in range(2)]  # more than a heap of a thread holds
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def main():
    return_freed_memory()
    faults()
    returned = faults()
    keep_freed_memory()
    faults()
    print(returned, faults())

if sys.argv[1] == "first":
    main()
else:  # as the training of a worker
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc, which it asks")
@pytest.mark.parametrize("thread", ["first", "another"])
def test_kept_blocks_cost_no_fresh_pages(thread):
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, thread], capture_output=True, text=True, check=True
    ).stdout
    returned, kept = map(int, output.split())
    assert returned > 100  # ten times 80 MiB, be its pages as large as they will
    assert kept < returned / 10
