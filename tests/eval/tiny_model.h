// Builds a language model with random parameters, and a checkpoint of it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::eval {

using TinyParameters = std::unordered_map<std::string, at::Tensor>;

inline config::RunConfig tiny_config(config::ThresholdScope scope = config::ThresholdScope::kGlobal) {
  config::RunConfig config;
  config.model.hidden_size = 16;
  config.model.num_layers = 3;
  config.model.num_heads = 2;
  config.model.ffn_hidden_size = 8;
  config.model.num_experts = 16;
  config.model.vocab_size = 64;
  config.model.sequence_length = 2048;
  config.model.init_std = 0.5;
  config.routing.scope = scope;
  return config;
}

inline TinyParameters tiny_parameters(const config::RunConfig& config) {
  TinyParameters parameters;
  for (const parameters::ParameterSpec& spec :
       models::language_model_parameters(config.model, config.routing)) {
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    parameters::initialize(spec, 3, tensor);
    parameters.emplace(spec.name, tensor);
  }
  return parameters;
}

// Without a router. Computes in `type`.
inline inference::InferenceModel tiny_model(const config::RunConfig& config,
                                            at::ScalarType type = at::kFloat) {
  TinyParameters parameters = tiny_parameters(config);
  for (const parameters::ParameterSpec& spec :
       models::language_model_parameters(config.model, config.routing))
    if (spec.compute_precision()) parameters.at(spec.name) = parameters.at(spec.name).to(type);
  inference::InferenceModel loaded{config, {}, {}};
  loaded.model = models::bind_language_model(config.model, config.routing,
                                             [&](const std::string& name) { return parameters.at(name); });
  return loaded;
}

// Saves a complete checkpoint, except for the optimizer's file; p is 0.4.
inline std::filesystem::path save_tiny_checkpoint(const std::filesystem::path& folder,
                                                  const config::RunConfig& config,
                                                  const std::string& tokenizer_json = "") {
  const TinyParameters parameters = tiny_parameters(config);
  checkpoint::CheckpointContents contents;
  contents.state = {.step = 5, .tokens = 1000};
  ops::NamedTensors router;
  if (!config.model.is_dense()) router = moe::make_router(config, at::kCPU)->state();
  for (auto& [name, tensor] : router)
    if (name == "threshold_C") tensor = at::full_like(tensor, 0.4);
  contents.router = moe::router_sources(router);
  contents.config_yaml = config::to_yaml(config);
  contents.tokenizer_json = tokenizer_json;
  for (const auto& [name, tensor] : parameters) {
    const std::span values(tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel()));
    contents.parameters.push_back({name, "F32", tensor.sizes().vec(), std::as_bytes(values)});
  }
  checkpoint::OneProcess alone;
  const auto path = checkpoint::save_checkpoint(folder, contents, 0, alone);
  std::filesystem::remove(path / "optimizer.safetensors");
  return path;
}

}  // namespace dtopp::eval
