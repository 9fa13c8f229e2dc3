// Selects the top_k likeliest experts of each token.
#include <memory>

#include "dtopp/moe/router.h"

namespace dtopp::moe {
namespace {

class TopKRouter final : public Router {
 public:
  using Router::Router;

  ops::RouteOutput select(const RouterInput& input) override {
    return route_by(input, config::top_k_of(config()), /*threshold=*/{});
  }
};

}  // namespace

std::unique_ptr<Router> make_top_k_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopKRouter>(config, device);
}

}  // namespace dtopp::moe
