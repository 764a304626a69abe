"""Ask cuBLASLt itself how it would split K, on the profile's own GPU only (rule N21).

The descriptor is the one torch 2.7.1 builds for torch._scaled_mm with contiguous operands, the
same that the tables were recorded with. This has not run on hardware in this project: the tests
check the descriptor on a library of their own, and recorded decisions always come first.
"""

from __future__ import annotations

from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.bindings.libcublaslt import CublasLt, MatmulQuery, open_cublaslt
from mmaemu.bindings.libcuda import Device, current_device
from mmaemu.bindings.library import NativeLibraryError
from mmaemu.formats import FORMATS
from mmaemu.gemm.problem import GemmProblem
from mmaemu.profiles.profile import Profile

# Leading dimensions are signed 64-bit numbers; ctypes would silently drop higher bits.
_LARGEST_SIZE = (1 << 63) - 1
_CUBLAS_TYPES = {
    name: fmt.cublas_name
    for fmt in FORMATS.values()
    if fmt.cublas_name
    for name in (fmt.name, fmt.torch_name)
}


def scaled_mm_query(
    problem: GemmProblem, workspace_bytes: int, alignment: int | None = None
) -> MatmulQuery:
    """Describe a product to cuBLASLt as torch 2.7.1 does in torch._scaled_mm.

    torch computes the row-major output [M, N] as the column-major product of mat2 (A, transposed)
    and mat1 (B), so m = N and n = M. Its C is never read but has a type: the one a bias would
    have, float16 for float8 outputs and the output's own otherwise.

    Args:
        problem: the GEMM, with contiguous operands and no zero size.
        workspace_bytes: the workspace cuBLASLt may use.
        alignment: minimum alignment in bytes to state; torch states none.
    """
    out = _CUBLAS_TYPES[problem.out]
    bias = _CUBLAS_TYPES["fp16"] if problem.out.startswith("float8") else out
    return MatmulQuery(
        m=problem.N,
        n=problem.M,
        k=problem.K,
        leading_dimensions=(problem.K, problem.K, problem.N),
        types=(_CUBLAS_TYPES[problem.format_b], _CUBLAS_TYPES[problem.format_a], bias, out),
        fast_accum=problem.use_fast_accum,
        workspace_bytes=workspace_bytes,
        alignment=alignment,
    )


def platform_mismatch(profile: Profile) -> str | None:
    """Why the GPU of this process is not the profile's own platform; None if it is.

    Name, SM count and cuBLASLt version must all be equal. cuBLASLt does not tell its build number,
    so the version is compared to the patch number.
    """
    found = _own_platform(profile)
    return found if isinstance(found, str) else None


def live_decision(problem: GemmProblem, profile: Profile) -> AlgoConfig | str:
    """The decision of cuBLASLt itself, or the reason why it cannot be asked here.

    Args:
        problem: the GEMM, with contiguous operands and no zero size.
        profile: the platform that is emulated.
    """
    if profile.workspace_bytes is None:
        return "the profile states no workspace"
    if max(problem.M, problem.N, problem.K) > _LARGEST_SIZE:
        return f"cuBLASLt takes sizes up to {_LARGEST_SIZE}"
    platform = _own_platform(profile)
    if isinstance(platform, str):
        return platform
    device, library = platform
    query = scaled_mm_query(problem, profile.workspace_bytes, profile.align)
    try:
        return library.heuristic(query, device.handle)
    except NativeLibraryError as error:
        return str(error)


def _own_platform(profile: Profile) -> tuple[Device, CublasLt] | str:
    version = profile.cublaslt_version
    if profile.gpu_name is None or profile.sm_count is None or version is None:
        return "the profile names no GPU, SM count and cuBLASLt version"
    try:
        device = current_device()
        if (device.name, device.sm_count) != (profile.gpu_name, profile.sm_count):
            return (
                f"this GPU is {device.name} with {device.sm_count} SMs, "
                f"not {profile.gpu_name} with {profile.sm_count}"
            )
        library = open_cublaslt(int(version.partition(".")[0]))
        found = ".".join(map(str, library.version()))
    except NativeLibraryError as error:
        return str(error)
    if not f"{version}.".startswith(f"{found}."):
        return f"cuBLASLt is {found}, not {version}"
    return device, library
