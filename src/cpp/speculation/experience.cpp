#include "speculation/experience.h"

#include <cmath>

#include "base/error.h"

namespace lb {
namespace {

template <class Experience, class F>
void for_each_number(Experience& experience, F&& f) {
  for (auto& acceptance : experience.acceptance) acceptance.for_each_number(f);
  experience.expected.for_each_number(f);
}

}  // namespace

std::vector<double> DraftExperience::numbers() const {
  std::vector<double> numbers;
  DraftExperience copy = *this;
  for_each_number(copy, [&](double& number) { numbers.push_back(number); });
  return numbers;
}

DraftExperience DraftExperience::from(std::span<const double> numbers) {
  DraftExperience experience;
  size_t n = 0;
  for_each_number(experience, [&](double& number) {
    if (n < numbers.size()) number = numbers[n];
    ++n;
  });
  LB_CHECK(n == numbers.size(), kInvalid, "the experience of drafts has ", numbers.size(), " numbers, expected ", n);
  for (const double number : numbers)
    LB_CHECK(std::isfinite(number) && number >= 0, kInvalid, "the experience of drafts has the number ", number);
  LB_CHECK(experience.expected.is_possible(), kInvalid, "the experience of drafts expects impossible trees");
  return experience;
}

}  // namespace lb
