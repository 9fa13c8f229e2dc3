#include "dtopp/optim/gradient_sums.h"

#include <memory>

namespace dtopp {
namespace {

at::Tensor in_fp32(const at::Tensor& gradient) {
  return gradient.defined() ? gradient.to(at::kFloat).contiguous() : gradient;
}

}  // namespace

// Called once per backward pass when the gradient of a parameter is complete: by autograd, or by the op that
// writes the gradient itself.
class GradientSums::Hook : public GradientSum {
 public:
  Hook(GradientSums& sums, size_t parameter) : sums_(sums), parameter_(parameter) {}

  // The gradient is undefined if an op has written it or if there is none.
  void operator()(const at::Tensor& leaf) override {
    if (leaf.grad().defined()) sums_.add(parameter_, std::exchange(leaf.mutable_grad(), at::Tensor()));
  }
  SumPlace place() override { return sums_.place(parameter_); }
  void complete(const SumPlace& place) override { sums_.complete(parameter_, place); }

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

at::Tensor GradientSums::waiting(size_t parameter) {
  TreeAccumulator& sum = sums_[parameter];
  // Without a tree, the earlier sum is the only stored leaf, and the new gradient is added to it.
  if (at::Tensor before; !along_tree_ && (before = sum.finish()).defined()) sum.add(std::move(before));
  return sum.waiting();
}

SumPlace GradientSums::place(size_t parameter) {
  const at::Tensor& leaf = leaves_[parameter];
  at::Tensor sum = exchanges_each(parameter) ? at::Tensor() : waiting(parameter);
  if (sum.defined()) return {std::move(sum), true};
  // In fp32, autograd's gradient becomes the sum without a copy.
  if (leaf.scalar_type() == at::kFloat) return {};
  return {at::empty(leaf.sizes(), leaf.options().dtype(at::kFloat)), false};
}

void GradientSums::complete(size_t parameter, const SumPlace& place) {
  const at::NoGradGuard no_grad;
  if (!place.add) return add(parameter, place.sum);
  sums_[parameter].added();
  end(parameter);
}

void GradientSums::add(size_t parameter, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  if (exchanges_each(parameter)) {
    reached_[parameter] = 1;
    return shared_.exchange->add(place_[parameter], in_fp32(gradient));
  }
  add_to_sum(parameter, std::move(gradient));
  end(parameter);
}

// Adding a bf16 gradient to an fp32 sum directly moves half as many bytes as converting it first.
void GradientSums::add_to_sum(size_t parameter, at::Tensor gradient) {
  sums_[parameter].add(waiting(parameter).defined() ? std::move(gradient) : in_fp32(gradient));
}

void GradientSums::end(size_t parameter) {
  reached_[parameter] = 1;
  if (left_ > 1) return;
  at::Tensor sum = sums_[parameter].finish();
  if (place_[parameter] == kNotShared) return take_(parameter, std::move(sum));
  shared_.exchange->add(place_[parameter], std::move(sum));
}

void GradientSums::end_micro_batch() {
  for (size_t i = 0; i < reached_.size(); ++i) {
    if (reached_[i] == 0) add(i, at::Tensor());
    reached_[i] = 0;
  }
  if (exchanges()) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> sums = shared_.exchange->take_sums();
    for (size_t place = 0; place < sums.size(); ++place) {
      const size_t parameter = shared_.parameters[place];
      add_to_sum(parameter, std::move(sums[place]));
      if (left_ == 1) take_(parameter, sums_[parameter].finish());
    }
  }
  left_ -= 1;
}

}  // namespace dtopp
