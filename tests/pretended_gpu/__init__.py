"""A card that is only pretended, so that what Traindeck does on a GPU can be run, and looked at, where there is none.

    python -m tests.pretended_gpu python -m trainer_core train --preset quickstart
    python -m tests.pretended_gpu python -m pytest tests/core/test_timing.py

It takes torch's real CUDA build. Below it stand libraries of our own: CUDA's runtime and driver, whose memory is the
host's, NVML, and cuBLAS, which does nothing. Above, each operator of a CUDA tensor is computed by the one for CPUs, in
that same memory. So torch's allocator, streams, events, graphs, autocast, choice of attention and out-of-memory errors
are the real ones, and losses are right. `torch.compile` writes, and Triton and ptxas compile, all kernels; what is
computed is the graph they were written for, operator by operator.

What it cannot show: speed, what a kernel computes, two streams that race, NCCL (whose start fails: ranks fall back to
gloo), and a driver that misbehaves.

Linux, with g++ and a CUDA build of torch (`pip install torch` with the project's other packages, in an environment of
its own). The card is described by TRAINDECK_CARD_NAME, _MIB, _CAPABILITY (89) and _COUNT; TRAINDECK_CARD_TRACE=1 tells
on stderr which functions and kernels were asked for. Compiled code is not kept, so compiling takes its time each time.
"""
