// The parts of the extension module; each file converts and forwards, and computes nothing.
#pragma once

#include <nanobind/nanobind.h>

namespace lb {

void bind_engine(nanobind::module_& m);  // Engine, Session, Sampler
void bind_format(nanobind::module_& m);  // GgufFile, Safetensors
void bind_gpu(nanobind::module_& m);     // devices, memory, modules, launches
// gpu.Pack, and single ops on a device
void bind_gpu_ops(nanobind::module_& gpu, nanobind::module_& m);
void bind_gpu_delta(nanobind::module_& m);      // their part for recurrent layers and the rope table
void bind_gpu_sample(nanobind::module_& m);     // its part for sampling
void bind_gpu_load(nanobind::module_& m);       // its part for bringing weights to a device
void bind_gpu_attention(nanobind::module_& m);  // its part for attention and the paged cache
void bind_gpu_matmul(nanobind::module_& m);     // its part for products with many rows
void bind_gpu_rounded(nanobind::module_& m);    // its part for ops that also round what they make
void bind_launch(nanobind::module_& m);         // the choice of kernel and geometry
void bind_ops(nanobind::module_& m);            // single ops on numpy arrays
void bind_ops_linear(nanobind::module_& m);     // its part for products with weights
void bind_ops_rows(nanobind::module_& m);       // its part for rows, conversions and the layout of weights

}  // namespace lb
