#include "tests/ops/route/route_cases.h"

namespace dtopp::ops::route_cases {
namespace {

TEST(RouteCases, have_the_results_of_double_precision) { expect_results(c10::DispatchKey::CPU); }

}  // namespace
}  // namespace dtopp::ops::route_cases
