// Makes a router by its name, routing.method.
#pragma once

#include <memory>

#include "dtopp/moe/router.h"

namespace dtopp {

// For a model with experts.
std::unique_ptr<Router> make_router(const RunConfig& config, const at::Device& device);

}  // namespace dtopp
