// The parts of lucebox._kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace lb::kernels {

void bind_draft(nanobind::module_& m);        // Drafting
void bind_driver(nanobind::module_& m);       // memory, modules, launches
void bind_launch(nanobind::module_& m);       // the choice of kernel and geometry
void bind_speculation(nanobind::module_& m);  // suffix drafts, unions of trees, DraftPlanner

void bind_gpu_ops(nanobind::module_& m);    // single ops on a device; bind_gpu_* below are its parts
void bind_gpu_delta(nanobind::module_& m);  // recurrent layers
void bind_gpu_load(nanobind::module_& m);   // loading weights to a device
void bind_gpu_megakernel(nanobind::module_& m);
void bind_gpu_products(nanobind::module_& m);  // products with weights
void bind_gpu_sample(nanobind::module_& m);    // sampling

void bind_ops(nanobind::module_& m);         // single ops on numpy arrays; bind_ops_* below are its parts
void bind_ops_linear(nanobind::module_& m);  // products with weights
void bind_ops_rows(nanobind::module_& m);    // rows, conversions and the layout of weights

}  // namespace lb::kernels
