#include "dtopp/distributed/bucketed_reducer.h"

#include <gtest/gtest.h>

#include "tests/distributed/rank_threads.h"

namespace dtopp::distributed {
namespace {

TEST(BucketedReducer, gathers_parameters_of_every_type) {
  const std::vector<at::ScalarType> types = {at::kFloat, at::kBFloat16, at::kDouble, at::kHalf, at::kFloat};
  run_group(2, [&](Collectives& ranks) {
    BucketedReducer reducer(ranks, std::vector<Shards>(types.size(), {{0, 3}, {3, 5}}), at::kCPU);
    std::vector<at::Tensor> whole;
    for (const at::ScalarType type : types) {
      whole.push_back(at::zeros({5}, type));
      whole.back().slice(0, ranks.rank() == 0 ? 0 : 3, ranks.rank() == 0 ? 3 : 5).fill_(ranks.rank() + 1);
    }
    reducer.start_all_gather(whole, {});
    reducer.finish_all_gather();
    for (const at::Tensor& x : whole)
      EXPECT_TRUE(x.equal(at::tensor({1, 1, 1, 2, 2}).to(x.options()))) << x.scalar_type();
  });
}

}  // namespace

}  // namespace dtopp::distributed
