"""The seam to torch: which GPU, stream and capture state a call of torch has.

Everything else about a device comes from the driver. Tests on machines without a GPU replace these
functions, and nothing else, to run the whole backend on a driver of their own.
"""

from __future__ import annotations

import torch


def ordinal(device: torch.device) -> int:
    """The number of a CUDA device, as the driver counts them."""
    return torch.cuda.current_device() if device.index is None else device.index


def stream(device: torch.device) -> int:
    """The handle of the stream that is current on a CUDA device."""
    return int(torch.cuda.current_stream(device).cuda_stream)


def is_capturing() -> bool:
    """Whether the current stream is being captured into a graph."""
    return torch.cuda.is_current_stream_capturing()
