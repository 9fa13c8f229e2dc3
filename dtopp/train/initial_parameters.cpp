#include "dtopp/train/initial_parameters.h"

#include <map>
#include <string>
#include <string_view>

#include "dtopp/base/errors.h"
#include "dtopp/models/registry/make_model.h"
#include "dtopp/moe/router_state.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/parameters/initialisation.h"

namespace dtopp::train {
namespace {

using parameters::ParameterRole;
using parameters::ParameterSpec;
using Shapes = std::map<std::string, std::vector<int64_t>>;

std::string describe(const Shapes& shapes, const std::string& name) {
  const auto found = shapes.find(name);
  return found == shapes.end() ? "none" : c10::str(at::IntArrayRef(found->second));
}

bool is_down(const ParameterSpec& spec) { return spec.name.ends_with("down_proj"); }

}  // namespace

// The tensor in the checkpoint that a parameter is made of.
struct InitialParameters::Stored {
  std::string name;
  std::vector<int64_t> shape;
};

bool InitialParameters::is_new(const ParameterSpec& spec) const {
  if (spec.role == ParameterRole::kRouter) return there_.model.is_dense();
  if (spec.role != ParameterRole::kRouterScale) return false;
  return there_.model.is_dense() || there_.routing.normalization == config::Normalization::kFixed;
}

bool InitialParameters::is_upcycled(const ParameterSpec& spec) const {
  return spec.role == ParameterRole::kExpert && there_.model.is_dense();
}

int64_t InitialParameters::slices() const {
  const int64_t dense = there_.model.ffn_hidden_size, expert = here_.model.ffn_hidden_size;
  return dense % expert == 0 && here_.model.num_experts % (dense / expert) == 0 ? dense / expert : 1;
}

InitialParameters::Stored InitialParameters::stored(const ParameterSpec& spec) const {
  if (!is_upcycled(spec)) return {spec.name, spec.shape};
  constexpr std::string_view kExperts = "experts.";
  std::string name = spec.name + ".weight";
  name.erase(name.rfind(kExperts), kExperts.size());
  const int64_t rows = spec.shape[1], columns = spec.shape[2], m = slices();
  if (is_down(spec)) return {name, {rows, m * columns}};
  return {name, {m * rows, columns}};
}

void InitialParameters::require_fit(const std::vector<ParameterSpec>& specs) const {
  Shapes there, here;
  for (const ParameterSpec& spec : models::make_model(there_).parameters)
    there.emplace(spec.name, spec.shape);
  for (const ParameterSpec& spec : specs) {
    if (is_new(spec)) continue;
    const Stored tensor = stored(spec);
    here.emplace(tensor.name, tensor.shape);
  }
  for (const auto* shapes : {&here, &there}) {
    for (const auto& [name, shape] : *shapes) {
      if (describe(here, name) == describe(there, name)) continue;
      throw UsageError("training.initialize_from: " + checkpoint_.path().string() +
                       " has another model: " + name + " is " + describe(there, name) + " there and " +
                       describe(here, name) + " here; " +
                       (name.ends_with("gate.scale") ? "use its routing.normalization"
                                                     : "choose a checkpoint of the same model"));
    }
  }
}

void InitialParameters::fill(const ParameterSpec& spec, at::Tensor& whole) const {
  if (is_new(spec)) {
    parameters::initialise(spec, static_cast<uint64_t>(here_.training.seed), whole);
    if (spec.role != ParameterRole::kRouter) return;
    // [copies, m, D] without the rows of zero experts
    const at::Tensor rows =
        whole.narrow(0, 0, here_.model.num_experts).view({-1, slices(), here_.model.hidden_size});
    rows.copy_(rows.narrow(1, 0, 1).clone());
    return;
  }
  const Stored tensor = stored(spec);
  const std::span<const std::byte> bytes = checkpoint_.parameter(tensor.name, tensor.shape);
  if (!is_upcycled(spec)) return ops::copy_from_bytes(bytes, whole);
  const at::Tensor dense = at::empty(tensor.shape, whole.options());
  ops::copy_from_bytes(bytes, dense);
  fill_experts(spec, dense, whole);
}

void InitialParameters::fill(moe::Router& router) const {
  moe::load_expert_normalization(router, checkpoint_.router(), checkpoint_.path());
}

void InitialParameters::fill_experts(const ParameterSpec& spec, const at::Tensor& dense,
                                     at::Tensor& whole) const {
  const int64_t m = slices(), D = here_.model.hidden_size, F = here_.model.ffn_hidden_size;
  // The slices of one copy, [m, 2F, D] or [m, D, F]
  const at::Tensor parts = is_down(spec) ? dense.view({D, m, F}).transpose(0, 1) * m
                                         : dense.view({2, m, F, D}).transpose(0, 1).reshape({m, 2 * F, D});
  whole.view({-1, m, spec.shape[1], spec.shape[2]}).copy_(parts);
  if (here_.training.upcycle_noise == 0) return;
  ParameterSpec noise = spec;
  noise.name = "noise of " + spec.name;
  noise.initial = {parameters::Distribution::kTruncatedNormal,
                   here_.training.upcycle_noise * parts.square().mean().sqrt().item<double>()};
  at::Tensor drawn = at::empty_like(whole);
  parameters::initialise(noise, static_cast<uint64_t>(here_.training.seed), drawn);
  whole.add_(drawn);
}

}  // namespace dtopp::train
