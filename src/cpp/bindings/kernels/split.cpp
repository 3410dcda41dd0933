// Computes how a file's matrices would be divided among shards, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/kernels/bindings.h"
#include "format/model_file.h"
#include "models/model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Ranges = std::vector<std::pair<int, int>>;
using Shards = std::vector<Ranges>;

const char* axis_name(Split::Axis axis) {
  return axis == Split::Axis::kNone ? "none" : axis == Split::Axis::kRows ? "rows" : "columns";
}

Shards shards_of(const Split& split, int n_out, int n_in, const std::vector<int>& shares) {
  Shards shards(shares.size());
  for (size_t rank = 0; rank < shares.size(); ++rank)
    for (const SplitRange& range : shard_of(split, n_out, n_in, int(rank), shares))
      shards[rank].emplace_back(range.first, range.count);
  return shards;
}

// (name, n_out, n_in, axis, shards) of each matrix.
std::vector<std::tuple<std::string, int, int, std::string, Shards>> matrix_shards(const std::string& path,
                                                                                  const std::vector<int>& shares) {
  const ModelFile file = open_model_file(path);
  std::vector<std::tuple<std::string, int, int, std::string, Shards>> rows;
  make_model(file)->for_each_matrix([&](const Matrix& m) {
    rows.emplace_back(m.name, m.n_out, m.n_in, axis_name(m.split.axis), shards_of(m.split, m.n_out, m.n_in, shares));
  });
  return rows;
}

// sections: (groups, units per group, rows per unit, is_tiled), consecutive along the axis.
Shards row_shards(const std::vector<std::tuple<int, int, int, bool>>& sections, const std::vector<int>& shares) {
  Split split{Split::Axis::kRows, {}};
  int n_out = 0;
  for (const auto& [groups, units, unit, is_tiled] : sections) {
    split.sections.push_back({groups, units, unit, is_tiled});
    n_out += groups * units * unit;
  }
  return shards_of(split, n_out, 1, shares);
}

}  // namespace

void bind_split(nb::module_& m) {
  m.def("matrix_shards", &matrix_shards, "path"_a, "shares"_a,
        "Lists each matrix of a model as (name, n_out, n_in, axis, shards). axis: \"none\", \"rows\" or \"columns\"; "
        "shards: the (first, count) ranges that each shard has. shares: how much of the model each shard gets, [1, 1] "
        "for equal parts.");
  m.def("row_shards", &row_shards, "sections"_a, "shares"_a,
        "Divides the rows of a matrix among shards with these shares; returns the (first, count) ranges of each. A "
        "section is (groups, "
        "units per group, rows per unit, is_tiled).");
}

}  // namespace lb::kernels
