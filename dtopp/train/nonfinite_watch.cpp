#include "dtopp/train/nonfinite_watch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp::train {
namespace {

// The largest magnitudes of some tensors. NaN and infinity are found separately: masks contain infinities on
// purpose.
struct Magnitude {
  double largest = 0;  // of the finite tensors
  bool is_finite = true;
  bool has_nan = false;

  void add(double value) {
    if (std::isfinite(value)) largest = std::max(largest, value);
    is_finite = is_finite && std::isfinite(value);
    has_nan = has_nan || std::isnan(value);
  }
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_floating_point() ||
        tensor.numel() == 0)
      return;
    add(at::linalg_vector_norm(tensor.detach(), std::numeric_limits<double>::infinity()).item<double>());
  }
  void add(const c10::IValue& value) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isDouble()) add(std::abs(value.toDouble()));
    if (!value.isTensorList()) return;
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  }
};

// False for an operation that allocates memory without filling it, and for a view, which may show such
// memory.
bool computes(const at::RecordFunction& function) {
  const std::string_view operation = function.name();
  if (operation.starts_with("aten::empty") || operation.starts_with("aten::new_empty") ||
      operation.starts_with("aten::resize"))
    return false;
  const auto schema = function.operator_schema();
  return !schema || !std::ranges::any_of(schema->returns(), [](const c10::Argument& output) {
    return output.alias_info() != nullptr && !output.alias_info()->isWrite();
  });
}

// The inputs that the operation reads. An argument `out` is only written.
Magnitude measure_inputs(const at::RecordFunction& function) {
  Magnitude magnitude;
  const auto schema = function.operator_schema();
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_out = schema && i < schema->arguments().size() && schema->arguments()[i].is_out();
    if (!is_out) magnitude.add(inputs[i]);
  }
  return magnitude;
}

std::vector<int64_t> index_of(int64_t element, at::IntArrayRef sizes) {
  std::vector<int64_t> index(sizes.size());
  for (size_t i = sizes.size(); i-- > 0; element /= sizes[i]) index[i] = element % sizes[i];
  return index;
}

}  // namespace

// The callbacks are plain functions, so they find their object in a static pointer.
class NonfiniteWatch::Observer {
 public:
  Observer() {
    Observer* none = nullptr;
    if (!current.compare_exchange_strong(none, this))
      throw std::logic_error("NonfiniteWatch: there is another");
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true));
  }
  ~Observer() {
    at::removeCallback(handle_);
    current = nullptr;
  }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  std::optional<NonfiniteOrigin> origin;
  std::vector<LargestValue> largest;

 private:
  struct Observed : at::ObserverContext {
    Magnitude inputs;
    uint64_t first_node = 0;  // of a scope
  };
  // The autograd nodes that a scope created. Their backward functions belong to it.
  struct Nodes {
    std::vector<std::string> scopes;
    uint64_t begin = 0, end = 0;
  };

  // PyTorch passes the callbacks on to every thread that works for this one. Of those, only the threads of
  // backward passes are watched, not those that communicate.
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    thread_local bool is_in_backward = false;
    Observer* const observer = current.load();
    if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) is_in_backward = true;
    if (observer == nullptr || (observer->thread_ != std::this_thread::get_id() && !is_in_backward))
      return nullptr;
    const at::DisableRecordFunctionGuard unwatched;
    const at::NoGradGuard no_grad;
    return observer->on_begin(function);
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr) return;
    const at::DisableRecordFunctionGuard unwatched;
    const at::NoGradGuard no_grad;
    current.load()->on_end(function, *static_cast<Observed*>(context));
  }

  std::unique_ptr<Observed> on_begin(const at::RecordFunction& function) {
    auto observed = std::make_unique<Observed>();
    const std::lock_guard lock(mutex_);
    switch (function.scope()) {
      case at::RecordScope::USER_SCOPE:
        observed->first_node = at::sequence_number::peek();
        scopes_.emplace_back(function.name());
        break;
      case at::RecordScope::BACKWARD_FUNCTION:
        backward_nodes_.push_back(function.seqNr());
        break;
      default:
        observed->inputs = measure_inputs(function);
    }
    return observed;
  }

  void on_end(const at::RecordFunction& function, const Observed& observed) {
    const std::lock_guard lock(mutex_);
    switch (function.scope()) {
      case at::RecordScope::USER_SCOPE:
        nodes_.push_back({scopes_, observed.first_node, at::sequence_number::peek()});
        scopes_.pop_back();
        break;
      case at::RecordScope::BACKWARD_FUNCTION:
        backward_nodes_.pop_back();
        break;
      default:
        check(function, observed.inputs);
    }
  }

  void check(const at::RecordFunction& function, const Magnitude& inputs) {
    const std::string_view operation = function.name();
    order_ += 1;
    if (!computes(function)) return;
    Magnitude outputs;
    for (const c10::IValue& output : function.outputs()) outputs.add(output);
    const bool is_backward = !backward_nodes_.empty() || std::ranges::count(scopes_, kBackwardScope) > 0;
    const Pass pass = is_backward ? Pass::kBackward : Pass::kForward;
    if (outputs.is_finite) note_largest(operation, pass, outputs.largest);
    const bool is_origin = (!outputs.is_finite && inputs.is_finite) || (outputs.has_nan && !inputs.has_nan);
    if (!is_origin || origin) return;
    origin = {.order = order_,
              .pass = pass,
              .scopes = scopes(),
              .operation = std::string(operation),
              .largest_input = inputs.largest};
    describe(function.outputs());
  }

  // In the backward pass: of the innermost scope that created the node.
  const std::vector<std::string>& scopes() const {
    if (backward_nodes_.empty()) return scopes_;
    const auto node = static_cast<uint64_t>(backward_nodes_.back());
    for (const Nodes& nodes : nodes_)  // an inner scope ends, and is stored, before its outer one
      if (nodes.begin <= node && node < nodes.end) return nodes.scopes;
    return scopes_;
  }

  void note_largest(std::string_view operation, Pass pass, double magnitude) {
    const std::vector<std::string>& scopes = this->scopes();
    if (scopes.empty()) return;
    const auto found = std::ranges::find_if(largest, [&](const LargestValue& value) {
      return value.scope == scopes.back() && value.pass == pass;
    });
    if (found == largest.end())
      largest.push_back({scopes.back(), pass, std::string(operation), magnitude});
    else if (magnitude > found->magnitude)
      *found = {scopes.back(), pass, std::string(operation), magnitude};
  }

  void describe(const std::vector<c10::IValue>& outputs) {
    for (; origin->output < outputs.size(); ++origin->output) {
      const c10::IValue& value = outputs[origin->output];
      for (const at::Tensor& tensor :
           value.isTensor() ? std::vector{value.toTensor()}
                            : (value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>())) {
        Magnitude magnitude;
        magnitude.add(tensor);
        if (magnitude.is_finite) continue;
        origin->type = std::string(c10::toString(tensor.scalar_type())) + " " + c10::str(tensor.sizes());
        origin->nan = at::isnan(tensor).sum().item<int64_t>();
        origin->infinite = at::isinf(tensor).sum().item<int64_t>();
        const at::Tensor bad = at::isfinite(tensor).logical_not().flatten();
        origin->first_index = index_of(bad.to(at::kByte).argmax().item<int64_t>(), tensor.sizes());
        return;
      }
    }
  }

  static inline std::atomic<Observer*> current = nullptr;
  const std::thread::id thread_ = std::this_thread::get_id();
  at::CallbackHandle handle_;
  std::mutex mutex_;
  std::vector<std::string> scopes_;      // open
  std::vector<Nodes> nodes_;             // of closed scopes
  std::vector<int64_t> backward_nodes_;  // that run now
  int64_t order_ = 0;
};

NonfiniteWatch::NonfiniteWatch() : observer_(std::make_unique<Observer>()) {}

NonfiniteWatch::~NonfiniteWatch() = default;

const std::optional<NonfiniteOrigin>& NonfiniteWatch::origin() const { return observer_->origin; }

const std::vector<LargestValue>& NonfiniteWatch::largest() const { return observer_->largest; }

}  // namespace dtopp::train
