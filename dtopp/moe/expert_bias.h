// Balances the load of the experts without a loss: one bias per expert and layer decides which experts tokens
// select. It has no part in their gates. After each step, with c the tokens per expert of a layer:
//
//   bias_e <- bias_e + routing.bias_rate * sign(mean(c) - c_e)
//
// Source:        Wang et al., Auxiliary-Loss-Free Load Balancing (arXiv 2408.15664)
#pragma once

#include <string>

#include "dtopp/moe/router.h"

namespace dtopp::moe {

class ExpertBias {
 public:
  // Throws InvalidValue if routing.bias_rate is not positive.
  ExpertBias(const config::RunConfig& config, const at::Device& device);

  // The biases of a layer minus their mean, which changes no selection. f32 [E].
  at::Tensor of_layer(int64_t layer) const { return centred_LE_[layer]; }
  const at::Tensor& centred_LE() const { return centred_LE_; }
  const at::Tensor& bias_LE() const { return bias_LE_; }  // f64

  // These change nothing if `applied`, bool [], is false. add() moves the biases by rate * error, for a
  // router with another law.
  void update(const at::Tensor& tokens_per_expert_LE, const at::Tensor& applied);
  void add(const at::Tensor& error_LE, const at::Tensor& applied);

  ops::NamedTensors state() const { return {{"bias_LE", bias_LE_}}; }
  bool set_state(const std::string& name, const at::Tensor& value);  // false: the name is another one
  // bias_spread per layer: the largest minus the smallest bias.
  ops::NamedTensors metrics() const;

 private:
  double rate_;
  at::Tensor bias_LE_;     // f64
  at::Tensor centred_LE_;  // f32
};

// ExpertBias::centred_LE of a router whose state has biases; else undefined.
at::Tensor centred_bias_of(const Router* router);

}  // namespace dtopp::moe
