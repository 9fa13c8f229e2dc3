#include "dtopp/optim/gradient_accumulator.h"

#include <memory>

namespace dtopp::optim {
namespace {

at::Tensor in_fp32(const at::Tensor& gradient) {
  return gradient.defined() ? gradient.to(at::kFloat).contiguous() : gradient;
}

}  // namespace

// Called once per backward pass when the gradient of a parameter is complete: by autograd, or by the op that
// writes the gradient itself.
class GradientAccumulator::Hook : public ops::GradientAccumulationHook {
 public:
  Hook(GradientAccumulator& sums, size_t parameter) : sums_(sums), parameter_(parameter) {}

  // The gradient is undefined if an op has written it or if there is none.
  void operator()(const at::Tensor& parameter) override {
    if (parameter.grad().defined())
      sums_.add(parameter_, std::exchange(parameter.mutable_grad(), at::Tensor()));
  }
  ops::AccumulationTarget target() override { return sums_.target(parameter_); }
  void complete(const ops::AccumulationTarget& target) override { sums_.complete(parameter_, target); }

 private:
  GradientAccumulator& sums_;
  size_t parameter_;
};

GradientAccumulator::GradientAccumulator(const std::vector<at::Tensor>& parameters, bool along_tree,
                                         Take take, SharedGradients shared)
    : parameters_(parameters),
      along_tree_(along_tree),
      take_(std::move(take)),
      shared_(std::move(shared)),
      reducer_index_(parameters.size(), kNotShared),
      sums_(parameters.size()),
      reached_(parameters.size()) {
  for (size_t index = 0; index < shared_.parameters.size(); ++index)
    reducer_index_[shared_.parameters[index]] = index;
  for (size_t i = 0; i < parameters.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i], std::make_unique<Hook>(*this, i));
}

GradientAccumulator::~GradientAccumulator() {
  for (const at::Tensor& parameter : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void GradientAccumulator::begin(int64_t micro_batches) {
  left_ = micro_batches;
  std::fill(reached_.begin(), reached_.end(), 0);
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].finish();
    if (left_ == 0) take_(i, at::Tensor());
  }
}

at::Tensor GradientAccumulator::waiting(size_t parameter) {
  distributed::TreeAccumulator& sum = sums_[parameter];
  // Without a tree, the earlier sum is the only stored leaf, and the new gradient is added to it.
  if (at::Tensor before; !along_tree_ && (before = sum.finish()).defined()) sum.add(std::move(before));
  return sum.waiting();
}

ops::AccumulationTarget GradientAccumulator::target(size_t parameter) {
  const at::Tensor& weight = parameters_[parameter];
  at::Tensor sum = reduces_each(parameter) ? at::Tensor() : waiting(parameter);
  if (sum.defined()) return {std::move(sum), true};
  // In fp32, autograd's gradient becomes the sum without a copy.
  if (weight.scalar_type() == at::kFloat) return {};
  return {at::empty(weight.sizes(), weight.options().dtype(at::kFloat)), false};
}

// Autograd calls a hook once per backward pass. A second gradient therefore comes from another reader of a
// parameter whose gradient an op has already completed.
void GradientAccumulator::require_first(size_t parameter) const {
  TORCH_CHECK(reached_[parameter] == 0, "GradientAccumulator: parameter ", parameter,
              " got two gradients in one backward pass; an op that completes its gradient must be its only "
              "reader");
}

void GradientAccumulator::complete(size_t parameter, const ops::AccumulationTarget& target) {
  const at::NoGradGuard no_grad;
  require_first(parameter);
  if (!target.add) return add(parameter, target.sum);
  sums_[parameter].added();
  end(parameter);
}

void GradientAccumulator::add(size_t parameter, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  require_first(parameter);
  if (reduces_each(parameter)) {
    reached_[parameter] = 1;
    return shared_.reducer->add(reducer_index_[parameter], in_fp32(gradient));
  }
  add_to_sum(parameter, std::move(gradient));
  end(parameter);
}

// Adding a bf16 gradient to an fp32 sum directly moves half as many bytes as converting it first.
void GradientAccumulator::add_to_sum(size_t parameter, at::Tensor gradient) {
  sums_[parameter].add(waiting(parameter).defined() ? std::move(gradient) : in_fp32(gradient));
}

void GradientAccumulator::end(size_t parameter) {
  reached_[parameter] = 1;
  if (left_ > 1) return;
  at::Tensor sum = sums_[parameter].finish();
  if (reducer_index_[parameter] == kNotShared) return take_(parameter, std::move(sum));
  shared_.reducer->add(reducer_index_[parameter], std::move(sum));
}

void GradientAccumulator::end_micro_batch() {
  for (size_t i = 0; i < reached_.size(); ++i) {
    if (reached_[i] == 0) add(i, at::Tensor());
    reached_[i] = 0;
  }
  if (reduces()) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> sums = shared_.reducer->finish_reduce_scatter();
    for (size_t index = 0; index < sums.size(); ++index) {
      const size_t parameter = shared_.parameters[index];
      add_to_sum(parameter, std::move(sums[index]));
      if (left_ == 1) take_(parameter, sums_[parameter].finish());
    }
  }
  left_ -= 1;
}

}  // namespace dtopp::optim
