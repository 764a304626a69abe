"""Memory: operands, output and a fixed bound per thread, whatever M, N and K are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

# Each case runs in the same process; writing 5 to clear_refs resets the peak of the resident size.
SCRIPT = """
import sys, torch, mmaemu
from pathlib import Path
threads, cases = int(sys.argv[1]), [case.split(",") for case in sys.argv[2:]]
torch.set_num_threads(threads)

def resident(line):
    found = [row for row in Path("/proc/self/status").read_text().splitlines() if line in row]
    return int(found[0].split()[1]) << 10

def gemm(m, n, k, codes, dtype, profile, fast):
    a, b = (torch.full((rows, k), 0x39, dtype=torch.uint8) for rows in (m, n))
    fmt = torch.float8_e4m3fn
    if codes == "special":
        fmt = torch.float8_e5m2
        a[:, ::97] = 0x7C
        b[:, 5::97] = 0x7D
    one = torch.ones((), dtype=torch.float32)
    a, b, dtype = a.view(fmt), b.view(torch.float8_e4m3fn).t(), getattr(torch, dtype)
    return lambda: mmaemu.scaled_mm(a, b, one, one, out_dtype=dtype, profile=profile, splitk=1,
                                    use_fast_accum=fast == "fast", backend="reference")

gemm(16, 16, 256, "finite", "bfloat16", "ada", "slow")()
for m, n, k, *others in cases:
    call = gemm(int(m), int(n), int(k), *others)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    out = call()
    print(resident("VmHWM") - before - out.numel() * out.itemsize)
"""

BAND, PER_THREAD, ONCE = 16 * MIB, 16 * MIB, 8 * MIB
CASES = {
    # 16.8 million outputs: as fp32 accumulators they would take 64 MiB.
    "4096,4096,16,finite,bfloat16,ada,fast": BAND,
    "1024,4096,16,special,float32,ada,fast": 0,
    # Operands of 16 MiB each: as fp32 numbers they would take 64 MiB each.
    "16,16,1048576,finite,bfloat16,hopper,fast": 0,
    "16,16,1048576,special,float32,ada,slow": 0,
    "16,524288,32,finite,float8_e4m3fn,ada,slow": BAND,
}


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak can only be reset on Linux"
)
@pytest.mark.parametrize(("threads", "cases"), [(1, list(CASES)), (2, list(CASES)[1:2])])
def test_the_peak_is_operands_output_and_a_fixed_bound(threads: int, cases: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(threads), *cases],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peaks = [int(line) for line in done.stdout.split()]
    for case, peak in zip(cases, peaks, strict=True):
        bound = CASES[case] + threads * PER_THREAD + ONCE
        assert peak <= bound, f"{case}: {peak / MIB:.1f} MiB, bound {bound / MIB:.0f} MiB"
