#include "dtopp/models/layers/recompute.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

namespace dtopp::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeldPart final : torch::CustomClassHolder {
  explicit HeldPart(BlockPart held) : part(std::move(held)) {}
  BlockPart part;
};
using HeldPartPointer = c10::intrusive_ptr<HeldPart>;

constexpr const char* kPart = "part";

struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context, const at::TensorList& inputs,
                               const HeldPartPointer& held) {
    context->save_for_backward(inputs.vec());
    context->saved_data[kPart] = c10::IValue::make_capsule(held);
    return held->part(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto held = c10::static_intrusive_pointer_cast<HeldPart>(context->saved_data[kPart].toCapsule());
    variable_list inputs = context->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = inputs[i].detach().requires_grad_(context->needs_input_grad(i));
    variable_list outputs;
    {
      const at::AutoGradMode with_gradients(true);
      outputs = held->part(inputs);
    }
    torch::autograd::backward(outputs, grads);
    variable_list input_grads;
    for (const at::Tensor& input : inputs) input_grads.push_back(input.grad());
    input_grads.emplace_back();  // of the part
    return input_grads;
  }
};

}  // namespace

std::vector<at::Tensor> run_part(bool recompute, const BlockPart& part,
                                 const std::vector<at::Tensor>& inputs) {
  const bool stores = at::GradMode::is_enabled() && std::ranges::any_of(inputs, &at::Tensor::requires_grad);
  if (!recompute || !stores) return part(inputs);
  return Recomputed::apply(at::TensorList(inputs), c10::make_intrusive<HeldPart>(part));
}

}  // namespace dtopp::models
