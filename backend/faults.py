"""What kind of fault an exception tells of: memory ran out, the device is lost, or this piece of work is bad."""

from enum import Enum, auto

import torch

_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "ALLOC_FAILED",  # CUBLAS_STATUS_, CUDNN_STATUS_, CUSPARSE_STATUS_
    "CUBLAS_STATUS_NOT_INITIALIZED",  # how a handle fails for which there is no memory
    "Unable to find a valid cuDNN algorithm",  # none whose workspace fits
    "CUDNN_STATUS_NOT_SUPPORTED_WORKSPACE",
)
_LOST = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "invalid address space",
    "invalid program counter",
    "hardware stack error",
    "device-side assert",
    "unspecified launch failure",
    "launch timed out",
    "uncorrectable ECC",
    "uncorrectable NVLink",
    "device is lost",
    "fell off the bus",
    "driver shutting down",
)
"""Errors after which every call of this process's CUDA context fails (cudaError_t, "the process must be restarted")."""


class Fault(Enum):
    """What a failed piece of work calls for."""

    MEMORY = auto()
    """Do it again in less memory."""
    LOST = auto()
    """Nothing works in this process any more."""
    WORK = auto()
    """This piece of work cannot be done; the next may well be."""


def fault_of(error: BaseException) -> Fault:
    """By class, else by what CUDA, its libraries and torch write; the cause of `error` decides where it does not."""
    if is_out_of_memory(error):
        return Fault.MEMORY
    if isinstance(error, RuntimeError) and any(needle in str(error) for needle in _LOST):
        return Fault.LOST
    return fault_of(error.__cause__) if error.__cause__ is not None else Fault.WORK


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or the host: by class, else by what the libraries write."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(needle in str(error) for needle in _MEMORY)


def is_sound(device: torch.device) -> bool:
    """Waits for all work on `device`; False where its context is broken, so that none is left."""
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def first_line(error: BaseException) -> str:
    """What an error of CUDA or torch says, without the advice that follows."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
