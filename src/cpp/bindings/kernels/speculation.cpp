// Suffix drafts, the union of trees and the width of a step, for tests. A tree is (tokens, parents, scores) of its
// rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bindings/kernels/bindings.h"
#include "ops/draft_rules.h"
#include "speculation/merge.h"
#include "speculation/suffix.h"
#include "speculation/width.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<float>>;

std::span<const int32_t> span(const Ids& ids) { return {ids.data(), ids.size()}; }

Draft draft_of(const std::optional<Rows>& rows) {
  Draft draft{};
  if (!rows || std::get<0>(*rows).empty()) return draft;
  const auto& [tokens, parents, scores] = *rows;
  LB_CHECK(tokens.size() <= kMaxTree && parents.size() == tokens.size() && scores.size() == tokens.size(), kInvalid,
           "a tree has up to ", kMaxTree, " tokens, and a parent and a score each");
  drafting::start(draft, tokens[0]);
  for (size_t i = 1; i < tokens.size(); ++i) {
    LB_CHECK(parents[i] >= 0 && parents[i] < draft.rows, kInvalid, "row ", i, " has parent ", parents[i]);
    drafting::add(draft, tokens[i], parents[i], scores[i]);
  }
  return draft;
}

Rows rows_of(const Draft& draft) {
  return {{draft.tokens, draft.tokens + draft.rows},
          {draft.parents, draft.parents + draft.rows},
          {draft.scores, draft.scores + draft.rows}};
}

const char* name(SuffixSource source) {
  switch (source) {
    case SuffixSource::kNone: return "none";
    case SuffixSource::kSequence: return "sequence";
    case SuffixSource::kExpected: return "expected";
    case SuffixSource::kOutputs: return "outputs";
  }
  return "none";
}

const char* name(StepKind kind) {
  switch (kind) {
    case StepKind::kPlain: return "plain";
    case StepKind::kSuffix: return "suffix";
    case StepKind::kModel: return "model";
  }
  return "plain";
}

StepCosts costs_of(const std::vector<std::pair<int, double>>& append, double plain_ms, double draft_ms,
                   double context_ms, int draft_depth, double first_ms) {
  StepCosts costs{.append = {},
                  .plain_ms = plain_ms,
                  .draft_ms = draft_ms,
                  .draft_depth = draft_depth,
                  .first_ms = first_ms,
                  .context_ms = context_ms};
  for (const auto& [rows, ms] : append) costs.append.push_back({rows, ms});
  return costs;
}

}  // namespace

void bind_speculation(nb::module_& m) {
  nb::class_<SuffixDrafter>(m, "SuffixDrafter", "Drafts from text that occurred before.")
      .def(
          "__init__",
          [](SuffixDrafter* self, int context, int expected, std::shared_ptr<EarlierOutputs> outputs) {
            new (self) SuffixDrafter(context, expected, std::move(outputs));
          },
          "context"_a, "expected"_a = 0, "outputs"_a = nb::none())
      .def_static("planned_bytes", &SuffixDrafter::planned_bytes, "context"_a, "expected"_a)
      .def_prop_ro("n_tokens", &SuffixDrafter::n_tokens)
      .def(
          "push", [](SuffixDrafter& drafter, const Ids& tokens) { drafter.push(span(tokens)); }, "tokens"_a)
      .def("truncate", &SuffixDrafter::truncate, "n_tokens"_a)
      .def(
          "expect", [](SuffixDrafter& drafter, const Ids& text) { drafter.expect(span(text)); }, "text"_a)
      .def(
          "propose",
          [](const SuffixDrafter& drafter, int max_rows) {
            const SuffixDraft draft = drafter.propose(max_rows);
            return nb::make_tuple(rows_of(draft.tree), draft.accepted, draft.match, name(draft.source));
          },
          "max_rows"_a = kMaxTree, "(tree, expected number of accepted tokens, length of the match, source).");

  m.def(
      "merge",
      [](const Rows& a, const Rows& b, int max_rows) { return rows_of(merge(draft_of(a), draft_of(b), max_rows)); },
      "a"_a, "b"_a, "max_rows"_a = kMaxTree);
  m.def(
      "expected_tokens",
      [](const Rows& rows) {
        const Draft draft = draft_of(rows);
        const auto sums = expected_tokens(draft);
        return std::vector<double>(sums.begin() + 1, sums.begin() + 1 + draft.rows);
      },
      "tree"_a, "Expected number of accepted tokens of the first 1, 2, ... rows.");

  nb::class_<StepWidth>(m, "StepWidth", "Decides what each decode step verifies.")
      .def(
          "__init__",
          [](StepWidth* self, const std::vector<std::pair<int, double>>& append, double plain_ms, double draft_ms,
             bool has_model, int draft_budget, double context_ms, int draft_depth, double first_ms) {
            new (self) StepWidth(costs_of(append, plain_ms, draft_ms, context_ms, draft_depth, first_ms), has_model,
                                 draft_budget);
          },
          "append"_a, "plain_ms"_a, "draft_ms"_a = 0.0, "has_model"_a = false, "draft_budget"_a = 0,
          "context_ms"_a = 0.0, "draft_depth"_a = 0, "first_ms"_a = 0.0)
      .def(
          "set_costs",
          [](StepWidth& width, const std::vector<std::pair<int, double>>& append, double plain_ms, double draft_ms,
             double context_ms, int draft_depth, double first_ms) {
            width.set_costs(costs_of(append, plain_ms, draft_ms, context_ms, draft_depth, first_ms));
          },
          "append"_a, "plain_ms"_a, "draft_ms"_a = 0.0, "context_ms"_a = 0.0, "draft_depth"_a = 0, "first_ms"_a = 0.0)
      .def_prop_ro("draft_depth", &StepWidth::draft_depth)
      .def_prop_ro("model_may_pay", &StepWidth::model_may_pay)
      .def(
          "choose",
          [](StepWidth& width, const std::optional<Rows>& suffix, int max_rows) {
            return name(width.choose(draft_of(suffix), max_rows));
          },
          "suffix"_a = nb::none(), "max_rows"_a = kMaxTree)
      .def(
          "tree",
          [](StepWidth& width, const std::optional<Rows>& model) {
            const Draft draft = draft_of(model);
            return rows_of(width.tree(model ? &draft : nullptr));
          },
          "model"_a = nb::none())
      .def_prop_ro("rows_ahead", &StepWidth::rows_ahead)
      .def(
          "verified", [](StepWidth& width, const Rows& model, int rows) { width.verified(draft_of(model), rows); },
          "model"_a, "rows"_a)
      .def("start_sequence", &StepWidth::start_sequence, "is_timed"_a)
      .def("drafted", &StepWidth::drafted, "ms"_a)
      .def("took", &StepWidth::took, "rows"_a, "ms"_a)
      .def(
          "record", [](StepWidth& width, const std::vector<int32_t>& path) { width.record(path); }, "path"_a)
      .def_prop_ro("credit", &StepWidth::credit);
}

}  // namespace lb::kernels
