// Makes a router by its name, routing.method.
#pragma once

#include <memory>

#include "dtopp/moe/router.h"

namespace dtopp::moe {

// For a model with experts.
std::unique_ptr<Router> make_router(const config::RunConfig& config, const at::Device& device);

}  // namespace dtopp::moe
