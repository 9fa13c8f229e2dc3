// Makes a router by its name, routing.method.
#pragma once

#include "dtopp/base/safetensors.h"
#include "dtopp/moe/router.h"

namespace dtopp::moe {

// The state on the host.
ops::NamedTensors host_state(const Router& router);

// The tensors of a checkpoint's router.safetensors. `state` must live until they are written.
std::vector<TensorSource> router_sources(const ops::NamedTensors& state);

// Loads the tensors of a checkpoint. Throws CheckpointError, naming `checkpoint`, if they do not fit the
// router.
void load_router(Router& router, std::span<const TensorView> tensors, const fs::path& checkpoint);

// The same for the state of expert normalization alone. Changes nothing if the router or the checkpoint has
// none.
void load_expert_normalization(Router& router, std::span<const TensorView> tensors,
                               const fs::path& checkpoint);

// For a model with experts.
std::unique_ptr<Router> make_router(const config::RunConfig& config, const at::Device& device);

}  // namespace dtopp::moe
