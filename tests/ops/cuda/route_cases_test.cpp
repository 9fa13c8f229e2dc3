#include "tests/ops/route/route_cases.h"

#include "tests/ops/cuda/poisoned_memory.h"

namespace dtopp::ops::route_cases {
namespace {

TEST(RouteCasesOnHost, have_the_results_of_double_precision) {
  const PoisonedMemory poisoned;
  expect_results(c10::DispatchKey::CUDA);
}

}  // namespace
}  // namespace dtopp::ops::route_cases
