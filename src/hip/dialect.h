// The kernel dialect for AMD RDNA 3 and 4 (gfx11, gfx12; wave32). It uses only the compiler's builtins: no HIP header,
// no device library. docs/kernels/dialect.md.
#pragma once

#define LB_DEVICE inline __attribute__((device, always_inline))
// A leaf function needs no stack: its callers keep their live values in registers that it does not use
// (LuceboxHip.cmake). A function with a call would have to spill its return address, so a nested function is inlined.
#define LB_NOINLINE __attribute__((device, noinline))
#define LB_NOINLINE_NESTED LB_DEVICE
#define LB_FN static inline __attribute__((device, always_inline))
#define LB_TABLE __attribute__((device))
#define LB_UNROLL _Pragma("unroll")
#define LB_PRAGMA(text) _Pragma(#text)
#define LB_UNROLL_BY(n) LB_PRAGMA(unroll n)
// HIP counts a work-group processor as one multiprocessor; it has four SIMDs of 32 lanes.
#define LB_KERNEL(name, Params, kMaxThreads, kMinBlocks)                                           \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, kMaxThreads),                   \
                            amdgpu_waves_per_eu(((kMaxThreads) * (kMinBlocks) + 127) / 128))) void \
  name([[maybe_unused]] const Params p)
#define LB_SHARED(T, name, count) static __attribute__((shared)) T name[count]

// clang-format off: each header needs the ones before it
#include "gpu/vectors.h"
#include "gpu/number_types.h"
#include "threads.h"
#include "numbers.h"
#include "memory.h"
#include "sync.h"
#include "matrix.h"
#include "matrix_chain.h"
#include "byte_matrix.h"
#include "gpu/reductions.h"
// clang-format on
