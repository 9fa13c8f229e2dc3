#include "dtopp/train/gradient_sums.h"

#include <memory>

#include <torch/csrc/autograd/function_hook.h>

namespace dtopp {
namespace {

at::Tensor in_fp32(const at::Tensor& gradient) {
  return gradient.defined() ? gradient.to(at::kFloat).contiguous() : gradient;
}

// Half as many bytes are moved where a gradient in bf16 is added to a sum in fp32 as it is.
void add_to_tree(TreeAccumulator& sum, at::Tensor gradient) {
  sum.add(sum.takes_narrow() ? std::move(gradient) : in_fp32(gradient));
}

}  // namespace

// Called by autograd when the gradient of a leaf is complete in a backward pass, once for each.
class GradientSums::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSums& sums, size_t parameter) : sums_(sums), parameter_(parameter) {}

  void operator()(const at::Tensor& leaf) override {
    sums_.add(parameter_, std::exchange(leaf.mutable_grad(), at::Tensor()));
  }

 private:
  GradientSums& sums_;
  size_t parameter_;
};

GradientSums::GradientSums(const std::vector<at::Tensor>& leaves, bool along_tree, Take take,
                           SharedGradients shared)
    : leaves_(leaves),
      along_tree_(along_tree),
      take_(std::move(take)),
      shared_(std::move(shared)),
      place_(leaves.size(), kNotShared),
      sums_(leaves.size()),
      reached_(leaves.size()) {
  for (size_t place = 0; place < shared_.parameters.size(); ++place)
    place_[shared_.parameters[place]] = place;
  for (size_t i = 0; i < leaves.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(leaves[i], std::make_unique<Hook>(*this, i));
}

GradientSums::~GradientSums() {
  for (const at::Tensor& leaf : leaves_) torch::autograd::impl::set_post_acc_grad_hooks(leaf, nullptr);
}

void GradientSums::begin(int64_t micro_batches) {
  left_ = micro_batches;
  std::fill(reached_.begin(), reached_.end(), 0);
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].finish();
    if (left_ == 0) take_(i, at::Tensor());
  }
}

void GradientSums::add(size_t parameter, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  reached_[parameter] = 1;
  if (place_[parameter] == kNotShared || !exchanges()) return add_to_sum(parameter, std::move(gradient));
  if (!along_tree_) {
    add_to_tree(sums_[parameter], std::move(gradient));
    gradient = sums_[parameter].finish();
  }
  shared_.exchange->add(place_[parameter], in_fp32(gradient));
}

void GradientSums::add_to_sum(size_t parameter, at::Tensor gradient) {
  TreeAccumulator& sum = sums_[parameter];
  // What was added so far and the new one are the tree's only leaves.
  if (at::Tensor before; !along_tree_ && (before = sum.finish()).defined()) sum.add(std::move(before));
  add_to_tree(sum, std::move(gradient));
  if (left_ == 1) take_(parameter, sum.finish());
}

void GradientSums::end_micro_batch() {
  for (size_t i = 0; i < reached_.size(); ++i) {
    if (reached_[i] == 0) add(i, at::Tensor());
    reached_[i] = 0;
  }
  if (exchanges()) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> sums = shared_.exchange->take_sums();
    for (size_t place = 0; place < sums.size(); ++place)
      add_to_sum(shared_.parameters[place], std::move(sums[place]));
  }
  left_ -= 1;
}

}  // namespace dtopp
