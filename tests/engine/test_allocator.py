import platform
import subprocess
import sys
from pathlib import Path

import pytest

_FILE = Path(__file__).parents[2] / "fl_lightning" / "engine" / "machine.py"
_PROGRAM = """
import resource, runpy
keep_freed_memory = runpy.run_path({file!r})["keep_freed_memory"]
{first_line}
def step():
    return len(b"x" * 32_000_000)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(first_line: str, **environment: str) -> int:
    """Count the page faults of steps that take and free 32 MB, in a fresh process."""
    program = _PROGRAM.format(file=str(_FILE), first_line=first_line)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PATH": "", **environment}
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting exists in glibc alone")
def test_freed_memory_is_kept_and_not_paid_for_again():
    assert _page_faults("assert keep_freed_memory()") < 1000 < _page_faults("")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting exists in glibc alone")
def test_the_users_own_allocator_settings_win():
    assert _page_faults("assert not keep_freed_memory()", MALLOC_TOP_PAD_="0") > 1000
