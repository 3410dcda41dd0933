// The parts of lucebox._kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace lb::kernels {

void bind_draft(nanobind::module_& m);        // Drafting
void bind_driver(nanobind::module_& m);       // memory, modules, launches
void bind_exchange(nanobind::module_& m);     // exchanges between ranks
void bind_launch(nanobind::module_& m);       // the choice of kernel and geometry
void bind_speculation(nanobind::module_& m);  // suffix drafts, unions of trees, DraftPlanner

void bind_link(nanobind::module_& m);      // links between devices
void bind_gpu_load(nanobind::module_& m);  // loading weights to a device
void bind_gpu_megakernel(nanobind::module_& m);
void bind_gpu_sample(nanobind::module_& m);     // sampling
void bind_ops(nanobind::module_& m);            // single ops
void bind_session_probe(nanobind::module_& m);  // SessionProbe: times of a session's work
void bind_split(nanobind::module_& m);          // the division of matrices among shards
void bind_weights(nanobind::module_& m);        // types and the layout of weights

}  // namespace lb::kernels
