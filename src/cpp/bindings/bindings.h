// The parts of the extension module; each file converts and forwards, and computes nothing.
#pragma once

#include <nanobind/nanobind.h>

namespace lb {

void bind_draft(nanobind::module_& m);   // Drafting
void bind_engine(nanobind::module_& m);  // Engine, Session, Sampler
void bind_format(nanobind::module_& m);  // GgufFile, Safetensors
void bind_gpu(nanobind::module_& m);     // devices, memory, modules, launches
void bind_launch(nanobind::module_& m);  // the choice of kernel and geometry
void bind_memory_plan(nanobind::module_& m);
void bind_prompt_scorer(nanobind::module_& m);
void bind_split(nanobind::module_& m);        // the division of matrices among shards
void bind_speculation(nanobind::module_& m);  // suffix drafts, unions of trees, the width of a step

// gpu.Pack, and single ops on a device; the others are its parts.
void bind_gpu_ops(nanobind::module_& gpu, nanobind::module_& m);
void bind_gpu_attention(nanobind::module_& m);  // attention and the paged cache
void bind_gpu_delta(nanobind::module_& m);      // recurrent layers and the rope table
void bind_gpu_load(nanobind::module_& m);       // bringing weights to a device
void bind_gpu_matmul(nanobind::module_& m);     // products with many rows
void bind_gpu_megakernel(nanobind::module_& m);
void bind_gpu_products(nanobind::module_& m);  // products with weights
void bind_gpu_sample(nanobind::module_& m);    // sampling

void bind_ops(nanobind::module_& m);         // single ops on numpy arrays; the others are its parts
void bind_ops_linear(nanobind::module_& m);  // products with weights
void bind_ops_rows(nanobind::module_& m);    // rows, conversions and the layout of weights

}  // namespace lb
