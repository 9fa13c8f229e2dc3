// Computes the experts of a layer: on this rank, or on the ranks of an EP group (token_dispatcher.h).
#pragma once

#include "dtopp/moe/capacity_predictor.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"

namespace dtopp::moe {

class ExpertBackend {
 public:
  virtual ~ExpertBackend() = default;
  // The arguments and the result of moe_ffn (ops/moe_ffn/moe_ffn.h), with this rank's experts as weights.
  virtual at::Tensor forward(int64_t layer, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                             const at::Tensor& gate_up_proj, const at::Tensor& down_proj, bool recompute) = 0;
};

class LocalExperts final : public ExpertBackend {
 public:
  // `capacities` must outlive this object.
  explicit LocalExperts(const CapacityPredictor& capacities) : capacities_(capacities) {}

  at::Tensor forward(int64_t layer, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                     const at::Tensor& gate_up_proj, const at::Tensor& down_proj, bool recompute) override {
    const auto& capacity_L = capacities_.capacity_L();
    const int64_t capacity = capacity_L.empty() ? 0 : capacity_L.at(static_cast<size_t>(layer));
    return ops::moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity, recompute);
  }

 private:
  const CapacityPredictor& capacities_;
};

}  // namespace dtopp::moe
