// The kernel dialect for NVIDIA, sm_70 and up: every word is one or a few PTX instructions. docs/kernels/dialect.md.
#pragma once

// Number of helper threads, such as producer warps that fill a ring: the last threads of a block. n_threads() does not
// count them, and they take no part in block_barrier(). A kernel file defines it before it includes this header.
#ifndef LB_HELPER_THREADS
#define LB_HELPER_THREADS 0
#endif
#define LB_DEVICE __device__ __forceinline__
#define LB_NOINLINE __device__ __noinline__
#define LB_NOINLINE_NESTED LB_NOINLINE
#define LB_FN static __device__ __forceinline__
#define LB_TABLE __device__
#define LB_UNROLL _Pragma("unroll")
#define LB_PRAGMA(text) _Pragma(#text)
#define LB_UNROLL_BY(n) LB_PRAGMA(unroll n)
#define LB_KERNEL(name, Params, kMaxThreads, kMinBlocks)                \
  extern "C" __global__ void __launch_bounds__(kMaxThreads, kMinBlocks) \
      name([[maybe_unused]] const __grid_constant__ Params p)
#define LB_SHARED(T, name, count) __shared__ T name[count]

// clang-format off: each header needs the ones before it
#include "gpu/vectors.h"
#include "gpu/number_types.h"
#include "threads.h"
#include "numbers.h"
#include "memory.h"
#include "sync.h"
#if __CUDA_ARCH__ >= 750
#include "matrix.h"
#include "matrix_chain.h"
#include "byte_matrix.h"
#else
#include "quads.h"
#endif
#include "gpu/reductions.h"
// clang-format on
