"""Memory that ran out, a device that is lost, and work that is bad are told apart by class and by message."""

import pytest
import torch

from backend.faults import Fault, fault_of, first_line


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), Fault.MEMORY),
        (MemoryError(), Fault.MEMORY),
        (torch.AcceleratorError("CUDA error: out of memory"), Fault.MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), Fault.MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), Fault.MEMORY),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Fault.MEMORY),
        (RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"), Fault.MEMORY),
        (RuntimeError("Triton Error [CUDA]: out of memory"), Fault.MEMORY),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), Fault.MEMORY),
        (OSError(12, "Cannot allocate memory"), Fault.MEMORY),
        (caused(RuntimeError("the layer failed"), MemoryError()), Fault.MEMORY),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), Fault.LOST),
        (RuntimeError("CUDA error: device-side assert triggered"), Fault.LOST),
        (RuntimeError("CUDA error: unspecified launch failure"), Fault.LOST),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Fault.LOST),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), Fault.LOST),
        (caused(ValueError("x"), RuntimeError("CUDA error: the launch timed out and was terminated")), Fault.LOST),
        (RuntimeError("CUDA error: invalid configuration argument"), Fault.WORK),
        (ValueError("out of memory"), Fault.WORK),
        (IndexError("illegal memory access"), Fault.WORK),
    ],
)
def test_faults_are_told_apart(error: Exception, expected: Fault) -> None:
    assert fault_of(error) is expected


def test_an_allocation_that_the_machine_refuses_is_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert fault_of(raised.value) is Fault.MEMORY


def test_of_an_error_only_what_happened_is_told() -> None:
    assert first_line(RuntimeError("CUDA error: x\nFor debugging consider")) == "RuntimeError: CUDA error: x"
    assert first_line(MemoryError()) == "MemoryError: "
