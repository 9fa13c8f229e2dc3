// Counts the work of the operators that a step cannot do without: products, attention, norms, look-ups,
// routing, the loss, sums of gradients and the update. Conversions, copies and sums elsewhere cost nothing
// here, because a kernel that is fused further needs none of them.
#pragma once

#include <string_view>

#include <ATen/core/ivalue.h>

namespace dtopp::train {

// Bytes: every operand is read or written once. A causal mask halves the FLOPs of attention, whose backward
// pass counts twice its forward pass.
struct OperatorCost {
  double flops = 0, bytes = 0;
};
using CostFunction = OperatorCost (*)(c10::ArrayRef<c10::IValue> inputs);

// Returns the cost of an operator as a function of its inputs; null: none.
CostFunction cost_of(std::string_view name);
// The same for an operator that moves data. It counts only in sums of gradients and updates.
CostFunction cost_of_move(std::string_view name);

}  // namespace dtopp::train
