// Routes consecutive ranges of a pass's tokens with different routers: requests with different budgets share
// a pass.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dtopp/moe/router.h"
#include "dtopp/ops/route/route_selected.h"

namespace dtopp::moe {

struct RowRange {
  std::shared_ptr<Router> router;
  int64_t rows = 0;
};

// For inference: a selection holds gates and counts, but no means.
class RowRangesRouter final : public Router {
 public:
  // The ranges hold all rows of a pass, in order.
  RowRangesRouter(const config::RunConfig& config, const at::Device& device, std::vector<RowRange> ranges)
      : Router(config, device), ranges_(std::move(ranges)) {}

  ops::RouteOutput select(const RouterInput& input) override {
    std::vector<at::Tensor> gates;
    int64_t begin = 0;
    for (const RowRange& range : ranges_) {
      const auto part = [&](const at::Tensor& rows) {
        return rows.defined() ? rows.narrow(0, begin, range.rows) : rows;
      };
      gates.push_back(
          range.router
              ->select({input.layer, part(input.logits_TE), input.scale, input.training, part(input.ids_T)})
              .gates_TE);
      begin += range.rows;
    }
    ops::RouteOutput output;
    output.gates_TE = at::cat(gates);
    ops::set_counts(output.gates_TE.ne(0), output);
    return output;
  }

 private:
  std::vector<RowRange> ranges_;
};

}  // namespace dtopp::moe
