#include "dtopp/moe/routers/top_p.h"

#include <memory>

namespace dtopp::moe {

std::unique_ptr<Router> make_top_p_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopPRouter>(
      config, at::full({1}, config.routing.threshold, at::device(device).dtype(at::kDouble)));
}

}  // namespace dtopp::moe
