// The kernel dialect for the CPU, for tests. Every function has the semantics common to all chips, plus checks for
// wrong use. docs/kernels/dialect.md.
#pragma once

// Number of helper threads at the end of a block; see src/cuda/dialect.h.
#ifndef LB_HELPER_THREADS
#define LB_HELPER_THREADS 0
#endif
#define LB_DEVICE inline
#define LB_NOINLINE inline
#define LB_NOINLINE_NESTED inline
#define LB_UNROLL
#define LB_UNROLL_BY(n)
#define LB_KERNEL(name, Params, kMaxThreads, kMinBlocks)                                                       \
  static void name##_body(const Params& p);                                                                    \
  extern "C" void name(const Params& p) {                                                                      \
    ::lb::gpu::sim::current->block->n_helpers = LB_HELPER_THREADS;                                             \
    name##_body(p);                                                                                            \
  }                                                                                                            \
  static const ::lb::gpu::sim::Registration<Params> name##_registration{#name, kMaxThreads, kMinBlocks, name}; \
  static void name##_body([[maybe_unused]] const Params& p)
#define LB_SHARED(T, name, count)                                                                          \
  static const ::lb::gpu::sim::SharedSite name##_site{#name,      __FILE__, __LINE__, sizeof(T) * (count), \
                                                      alignof(T), sizeof(T)};                              \
  const ::lb::gpu::sim::SharedPointer<T> name = ::lb::gpu::sim::shared_array<T>(name##_site, count)

// clang-format off: each header needs the ones before it
#include "gpu/vectors.h"
#include "gpu/number_types.h"
#include "machine.h"
#include "pack.h"
#include "threads.h"
#include "numbers.h"
#include "shared_pointer.h"
#include "memory.h"
#include "sync.h"
#ifdef LUCEBOX_QUADS
#include "quads.h"
#else
#include "matrix.h"
#include "matrix_chain.h"
#include "byte_matrix.h"
#endif
// clang-format on
