#include "dtopp/train/replay.h"

#include <thread>

#include <nlohmann/json.hpp>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

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
  void add(const Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_floating_point() ||
        tensor.numel() == 0)
      return;
    add(at::linalg_vector_norm(tensor.detach(), std::numeric_limits<double>::infinity()).item<double>());
  }
  void add(const c10::IValue& value) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isDouble()) add(std::abs(value.toDouble()));
    if (!value.isTensorList()) return;
    for (const Tensor& tensor : value.toTensorVector()) add(tensor);
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

const char* name_of(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

// The parameters that hold non-finite values. Collective.
ordered_json nonfinite_parameters(const Trainer& trainer) {
  ordered_json names = ordered_json::array();
  for (const parameters::ParameterSpec& spec : trainer.parameters().specs())
    if (!at::isfinite(trainer.parameters().main_param(spec.name)).all().item<bool>())
      names.push_back(spec.name);
  return names;
}

ordered_json origin_json(const NonfiniteOrigin& origin) {
  return {{"order", origin.order},
          {"pass", name_of(origin.pass)},
          {"scopes", origin.scopes},
          {"operation", origin.operation},
          {"output", origin.output},
          {"tensor", origin.type},
          {"nan", origin.nan},
          {"infinite", origin.infinite},
          {"first_index", origin.first_index},
          {"largest_input", origin.largest_input}};
}

ordered_json samples_of(const Trainer& trainer, const NonfiniteOrigin& origin, int64_t position,
                        int64_t size) {
  ordered_json samples = ordered_json::array();
  for (const std::string& scope : origin.scopes) {
    if (!scope.starts_with(kMicroBatchScope)) continue;
    int64_t micro_batch = 0;
    std::from_chars(scope.data() + kMicroBatchScope.size(), scope.data() + scope.size(), micro_batch);
    for (int64_t i = 0; i < size; ++i)
      samples.push_back(
          trainer.data().training->describe(static_cast<uint64_t>(position + micro_batch * size + i)));
  }
  return samples;
}

ordered_json largest_json(const std::vector<LargestValue>& largest) {
  ordered_json json = ordered_json::array();
  for (const LargestValue& value : largest)
    json.push_back({{"scope", value.scope},
                    {"pass", name_of(value.pass)},
                    {"operation", value.operation},
                    {"magnitude", value.magnitude}});
  return json;
}

// The findings of one rank: {"origin", "largest"}.
ordered_json found_here(const Trainer& trainer, const NonfiniteWatch& watch, int64_t position, int64_t size) {
  ordered_json found = {{"origin", nullptr}, {"largest", largest_json(watch.largest())}};
  if (!watch.origin()) return found;
  found["origin"] = origin_json(*watch.origin());
  found["origin"]["samples"] = samples_of(trainer, *watch.origin(), position, size);
  return found;
}

// The rank with the earliest origin; rank 0 if none has one.
ordered_json earliest(distributed::Collectives& ranks, const ordered_json& here) {
  ordered_json first;
  for (const std::string& text : distributed::gather_bytes(ranks, dump_json(here), "replay")) {
    ordered_json found(parse_json(text, "replay"));
    if (first.is_null() ||
        (!found["origin"].is_null() &&
         (first["origin"].is_null() || found["origin"]["order"] < first["origin"]["order"])))
      first = std::move(found);
  }
  return first;
}

std::string origin_text(const ordered_json& origin) {
  std::string text = "first non-finite value\n";
  const auto row = [&](const char* name, const std::string& value) {
    text.append(format("  %-10s ", name)).append(value + "\n");
  };
  row("pass", origin["pass"]);
  row("place", origin["scopes"].empty() ? "outside the micro-batches" : joined(origin["scopes"], ", "));
  row("operation", origin["operation"].get<std::string>() + ", output " + dump_json(origin["output"]) + ": " +
                       origin["tensor"].get<std::string>());
  row("values", dump_json(origin["nan"]) + " NaN and " + dump_json(origin["infinite"]) +
                    " infinite, first at " + dump_json(origin["first_index"]));
  row("inputs", format("finite, at most %.4g", origin["largest_input"].get<double>()));
  for (const auto& sample : origin["samples"]) row("sample", sample);
  return text;
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
    if (function.scope() == at::RecordScope::USER_SCOPE) {
      observed->first_node = at::sequence_number::peek();
      scopes_.emplace_back(function.name());
    } else if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      backward_nodes_.push_back(function.seqNr());
    } else {
      observed->inputs = measure_inputs(function);
    }
    return observed;
  }

  void on_end(const at::RecordFunction& function, const Observed& observed) {
    const std::lock_guard lock(mutex_);
    if (function.scope() == at::RecordScope::USER_SCOPE) {
      nodes_.push_back({scopes_, observed.first_node, at::sequence_number::peek()});
      scopes_.pop_back();
    } else if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      backward_nodes_.pop_back();
    } else {
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
      for (const Tensor& tensor :
           value.isTensor() ? std::vector{value.toTensor()}
                            : (value.isTensorList() ? value.toTensorVector() : std::vector<Tensor>())) {
        Magnitude magnitude;
        magnitude.add(tensor);
        if (magnitude.is_finite) continue;
        origin->type = std::string(c10::toString(tensor.scalar_type())) + " " + c10::str(tensor.sizes());
        origin->nan = at::isnan(tensor).sum().item<int64_t>();
        origin->infinite = at::isinf(tensor).sum().item<int64_t>();
        const Tensor bad = at::isfinite(tensor).logical_not().flatten();
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

ordered_json replay_step(Trainer& trainer, int64_t micro_batch_size) {
  const int64_t position = trainer.state().sample_position;
  ordered_json parameters = nonfinite_parameters(trainer);
  std::optional<StepResult> result;
  ordered_json found;
  // A step that exceeds its predicted capacity runs again.
  while (!result) {
    const NonfiniteWatch watch;
    trainer.step({});
    result = trainer.next_result(0);
    found = found_here(trainer, watch, position, micro_batch_size);
  }
  found = earliest(trainer.ranks(), found);
  ordered_json losses;
  for (const auto& [name, value] : result->losses) losses[name] = value;
  return {{"step", result->step},      {"finite", !result->skipped},     {"loss", result->loss},
          {"losses", losses},          {"grad_norm", result->grad_norm}, {"parameters", parameters},
          {"origin", found["origin"]}, {"largest", found["largest"]}};
}

std::string replay_text(const ordered_json& replay) {
  std::string text =
      format("step %lld: loss %g, gradient norm %g: %s\n", replay["step"].get<long long>(),
             replay["loss"].get<double>(), replay["grad_norm"].get<double>(),
             replay["finite"].get<bool>() ? "finite" : "not finite or too large, so it is skipped");
  if (!replay["parameters"].empty())
    text += "parameters that are not finite before the step: " + joined(replay["parameters"], ", ") + "\n";
  if (!replay["origin"].is_null()) text += origin_text(replay["origin"]);
  constexpr size_t kShown = 10;
  std::vector<ordered_json> largest(replay["largest"].begin(), replay["largest"].end());
  std::ranges::stable_sort(largest, std::ranges::greater(),
                           [](const ordered_json& value) { return value["magnitude"].get<double>(); });
  largest.resize(std::min(largest.size(), kShown));
  text += format("%-28s %-9s %-32s %s\n", "largest values", "pass", "operation", "magnitude");
  for (const ordered_json& value : largest)
    text += format("%-28s %-9s %-32s %.4g\n", value["scope"].get<std::string>().c_str(),
                   value["pass"].get<std::string>().c_str(), value["operation"].get<std::string>().c_str(),
                   value["magnitude"].get<double>());
  return text;
}

}  // namespace dtopp::train
