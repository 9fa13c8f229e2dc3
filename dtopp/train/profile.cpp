#include "dtopp/train/profile.h"

#include <set>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"
#include "dtopp/ops/optimizer/orthogonalize.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {
namespace {

using Inputs = c10::ArrayRef<c10::IValue>;

double bytes(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? static_cast<double>(value.toTensor().nbytes()) : 0;
  double sum = 0;
  if (value.isTensorList())
    for (const Tensor& tensor : value.toTensorVector()) sum += static_cast<double>(tensor.nbytes());
  return sum;
}

double bytes(Inputs inputs) {
  double sum = 0;
  for (const c10::IValue& input : inputs) sum += bytes(input);
  return sum;
}

double numel(const c10::IValue& value) { return static_cast<double>(value.toTensor().numel()); }
double size(const c10::IValue& value, int64_t dim) { return static_cast<double>(value.toTensor().size(dim)); }
double width(const c10::IValue& value) { return static_cast<double>(value.toTensor().element_size()); }

// Results as large as the first operand.
OperatorCost like_first(Inputs in) { return {0, bytes(in) + bytes(in[0])}; }
OperatorCost only_reads(Inputs in) { return {0, bytes(in)}; }

// a [..., m, k] b [..., k, n]
OperatorCost product(const c10::IValue& a, const c10::IValue& b) {
  const double columns = size(b, -1), out = numel(a) / std::max(size(a, -1), 1.0) * columns;
  return {2 * numel(a) * columns, bytes(a) + bytes(b) + out * width(a)};
}
OperatorCost mm(Inputs in) { return product(in[0], in[1]); }
OperatorCost addmm(Inputs in) { return product(in[1], in[2]); }
// y_TN = x_TD W_ND^T
OperatorCost multiply_transposed(Inputs in) {
  return {2 * numel(in[0]) * size(in[1], 0), bytes(in) + size(in[0], 0) * size(in[1], 0) * width(in[0])};
}
// dW_ND = dy_TN^T x_TD
OperatorCost multiply_left_transposed(Inputs in) {
  return {2 * numel(in[0]) * size(in[1], 1), bytes(in) + size(in[0], 1) * size(in[1], 1) * width(in[0])};
}

// q, k, v, dropout, is_causal
OperatorCost attention(Inputs in) {
  return {4 * numel(in[0]) * size(in[1], -2) * (in[4].toBool() ? 0.5 : 1), like_first(in).bytes};
}
// grad, q, k, v, y, logsumexp, dropout, is_causal
OperatorCost attention_backward(Inputs in) {
  return {8 * numel(in[1]) * size(in[2], -2) * (in[7].toBool() ? 0.5 : 1),
          bytes(in) + bytes(in[1]) + bytes(in[2]) + bytes(in[3])};
}

// x, ...: reads and writes x; its backward pass, if there is one, reads two such tensors and writes one.
OperatorCost norm(Inputs in) { return {0, bytes(in[0]) * (at::GradMode::is_enabled() ? 5 : 2)}; }

// weight, indices
OperatorCost embedding(Inputs in) { return {0, 2 * numel(in[1]) * size(in[0], -1) * width(in[0])}; }
OperatorCost embedding_backward(Inputs in) { return {0, 2 * bytes(in[0])}; }

// A pair costs 2 D G FLOPs for gate and up, G = 2F, and 2 D F for down.
double expert_flops(double pairs, const c10::IValue& down_EDF) {
  return 6 * pairs * size(down_EDF, 1) * size(down_EDF, 2);
}
// x, gates, pairs, gate_up, down
OperatorCost experts(Inputs in) {
  const double pairs = size(in[2], 0);
  return {expert_flops(pairs, in[4]),
          2 * bytes(in[0]) + bytes(in[3]) + bytes(in[4]) + pairs * size(in[3], 1) * width(in[0])};
}
OperatorCost pre_activations(Inputs in) {
  const double pairs = size(in[2], 0);
  return {expert_flops(pairs, in[4]) * 2 / 3,
          bytes(in[0]) + bytes(in[3]) + pairs * size(in[3], 1) * width(in[0])};
}
// grad_y, x, gates, gate_up, down, pre_activations, needed
OperatorCost experts_backward(Inputs in) {
  return {2 * expert_flops(size(in[5], 0), in[4]),
          2 * bytes(in[0]) + bytes(in[1]) + 2 * (bytes(in[3]) + bytes(in[4])) + bytes(in[5])};
}
// The same, gate_up_sum, down_sum, add
OperatorCost experts_backward_sums(Inputs in) {
  const c10::List<bool> adds = in[9].toBoolList();
  return {2 * expert_flops(size(in[5], 0), in[4]),
          2 * bytes(in[0]) + bytes(in[1]) + bytes(in[3]) + bytes(in[4]) + bytes(in[5]) +
              bytes(in[7]) * (adds.get(0) ? 2 : 1) + bytes(in[8]) * (adds.get(1) ? 2 : 1)};
}

// x, weight, targets, z_weight, ignore_index, need_x, need_weight
OperatorCost cross_entropy(Inputs in) {
  const int need_x = in[5].toBool() ? 1 : 0, need_weight = in[6].toBool() ? 1 : 0;
  return {2 * numel(in[0]) * size(in[1], 0) * (1 + need_x + need_weight),
          bytes(in[0]) * (1 + need_x) + bytes(in[1]) * (1 + need_weight)};
}

// parameters, gradients, two moments: all but the gradients are also written.
OperatorCost adamw(Inputs in) { return {0, 2 * (bytes(in[0]) + bytes(in[2]) + bytes(in[3])) + bytes(in[1])}; }

// [B, M, N]
OperatorCost orthogonalize(Inputs in) {
  return {size(in[0], 0) * ops::orthogonalize_flops(size(in[0], 1), size(in[0], 2)), 2 * bytes(in[0])};
}

// self, other: self is written
OperatorCost copy(Inputs in) { return {0, bytes(in[0]) + bytes(in[1])}; }
OperatorCost add_in_place(Inputs in) { return {0, 2 * bytes(in[0]) + bytes(in[1])}; }

using Row = std::pair<std::string_view, CostFunction>;

constexpr auto kCosts = std::to_array<Row>({
    {"aten::mm", mm},
    {"aten::bmm", mm},
    {"aten::addmm", addmm},
    {"aten::baddbmm", addmm},
    {"dtopp::multiply", mm},
    {"dtopp::multiply_transposed", multiply_transposed},
    {"dtopp::multiply_left_transposed", multiply_left_transposed},
    {"dtopp::attention", attention},
    {"dtopp::attention_backward", attention_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
    {"aten::rms_norm", norm},
    {"aten::layer_norm", norm},
    {"dtopp::norm", norm},
    {"dtopp::norm_rotary_forward", like_first},
    {"dtopp::norm_rotary_backward", like_first},
    {"aten::embedding", embedding},
    {"aten::embedding_dense_backward", embedding_backward},
    {"dtopp::route", like_first},
    {"dtopp::route_backward", like_first},
    {"dtopp::moe_ffn_forward", experts},
    {"dtopp::moe_ffn_pre_activations", pre_activations},
    {"dtopp::moe_ffn_backward", experts_backward},
    {"dtopp::moe_ffn_backward_sums", experts_backward_sums},
    {"dtopp::linear_cross_entropy_forward", cross_entropy},
    {"dtopp::squared_norms", only_reads},
    {"aten::_fused_adamw_", adamw},
    {"dtopp::orthogonalize", orthogonalize},
});

// Operators that move data. They count only in sums of gradients and updates.
constexpr auto kMoves = std::to_array<Row>({
    {"aten::copy_", copy},
    {"aten::add_", add_in_place},
    {"aten::lerp_", add_in_place},
});

// Returns the cost of an operator as a function of its inputs; null: none.
CostFunction cost_in(const auto& rows, std::string_view name) {
  const auto row = std::ranges::find(rows, name, &Row::first);
  return row == rows.end() ? nullptr : row->second;
}

constexpr auto kLabels = std::to_array<const char*>(
    {"embedding", "norms, rotation, residuals", "attention, forward", "attention, backward", "router",
     "experts, feed-forward", "loss", "gradient sums", "gradient norm", "update", "Muon", "other"});
static_assert(kLabels.size() == static_cast<size_t>(StepPart::kCount));

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_layer(std::string_view scope) {
  return scope.starts_with("layer ") && scope.find_first_not_of("0123456789", 6) == std::string_view::npos;
}

std::optional<StepPart> part_of_scope(std::string_view scope) {
  if (scope == "embedding") return StepPart::kEmbedding;
  if (scope == "final norm" || is_layer(scope)) return StepPart::kNorms;
  if (scope.ends_with(" attention")) return StepPart::kAttention;
  if (scope.ends_with(" mlp")) return StepPart::kFeedForward;
  if (scope == "router") return StepPart::kRouter;
  if (scope == "loss" || scope == "output") return StepPart::kLoss;
  if (scope == kGradientSumsScope) return StepPart::kGradientSums;
  if (scope == kGradientNormScope) return StepPart::kGradientNorm;
  if (scope == kUpdateScope) return StepPart::kUpdate;
  return std::nullopt;
}

std::optional<StepPart> part_of_operator(std::string_view name) {
  if (name == "aten::rms_norm" || name == "aten::layer_norm" || name.starts_with("dtopp::norm"))
    return StepPart::kNorms;
  if (name == "dtopp::orthogonalize") return StepPart::kMuon;
  return std::nullopt;
}

thread_local StepProfile* recorded = nullptr;

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

}  // namespace

StepProfile::Names::const_pointer StepProfile::find(const at::RecordFunction& function) {
  const std::string_view text = function.name();
  if (const auto found = names_.find(text); found != names_.end()) return &*found;
  Name name;
  if (function.scope() == at::RecordScope::USER_SCOPE)
    name.part = part_of_scope(text);
  else if (function.scope() != at::RecordScope::BACKWARD_FUNCTION)
    name = {.part = part_of_operator(text), .cost = cost_in(kCosts, text), .move = cost_in(kMoves, text)};
  else if (text.ends_with("AccumulateGrad"))
    name.part = StepPart::kGradientSums;
  return &*names_.emplace(text, name).first;
}

int64_t StepProfile::charge() {
  const int64_t time = now();
  if (!open_.empty())
    sums_[static_cast<size_t>(open_.back().part)].seconds += 1e-9 * static_cast<double>(time - last_);
  last_ = time;
  return time;
}

// From the next node on.
void StepProfile::note_nodes(StepPart part) {
  const uint64_t next = at::sequence_number::peek();
  if (!nodes_.empty() && nodes_.back().first == next) {
    nodes_.back().second = part;
  } else if (nodes_.empty() || nodes_.back().second != part) {
    nodes_.emplace_back(next, part);
  }
}

StepPart StepProfile::part_of_node(int64_t sequence_number) const {
  const auto after = std::ranges::upper_bound(nodes_, static_cast<uint64_t>(sequence_number), {},
                                              &decltype(nodes_)::value_type::first);
  const StepPart part = after == nodes_.begin() ? StepPart::kOther : std::prev(after)->second;
  return part == StepPart::kAttention ? StepPart::kAttentionBackward : part;
}

void StepProfile::begin(const at::RecordFunction& function) {
  const auto* const name = find(function);
  StepPart part = open_.empty() ? StepPart::kOther : open_.back().part;
  bool counted = !open_.empty() && open_.back().counted;
  if (name->second.part) {
    part = *name->second.part;
  } else if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    part = part_of_node(function.seqNr());
  }
  CostFunction cost = name->second.cost;
  if (part == StepPart::kGradientSums || part == StepPart::kUpdate) cost = cost ? cost : name->second.move;
  if (cost != nullptr && !counted) {
    const OperatorCost added = cost(function.inputs());
    sums_[static_cast<size_t>(part)].flops += added.flops;
    sums_[static_cast<size_t>(part)].bytes += added.bytes;
    counted = true;
  }
  if (open_.empty() || open_.back().part != part) note_nodes(part);
  const int64_t time = charge();
  open_.push_back({events_.size(), part, counted});
  events_.push_back({name, part, time, time});
}

void StepProfile::end() {
  events_[open_.back().event].end = charge();
  const StepPart part = open_.back().part;
  open_.pop_back();
  if (!open_.empty() && open_.back().part != part) note_nodes(open_.back().part);
}

StepProfile::Recording::Recording(StepProfile& profile, int64_t step) {
  profile.events_.clear();
  profile.nodes_.clear();
  recorded = &profile;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end).needsInputs(true));
  step_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  step_->before("step " + std::to_string(step));
}

StepProfile::Recording::~Recording() {
  step_->end();
  at::removeCallback(handle_);
  StepProfile& profile = *std::exchange(recorded, nullptr);
  if (std::exchange(profile.warm_, true)) {
    profile.steps_ += 1;
  } else {
    profile.sums_ = {};
  }
}

// PyTorch passes the callbacks on to threads that work for this one. An asynchronous operation ends at any
// time.
std::unique_ptr<at::ObserverContext> StepProfile::Recording::begin(const at::RecordFunction& function) {
  if (recorded != nullptr && !function.isAsync()) recorded->begin(function);
  return nullptr;
}

void StepProfile::Recording::end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  if (recorded != nullptr && !function.isAsync()) recorded->end();
}

std::string StepProfile::table(const MachineRates& rates) const {
  const auto steps = static_cast<double>(steps_);
  double measured = 0, reached = 0, flops = 0, bytes = 0;
  for (const Sums& sums : sums_) measured += sums.seconds / steps;
  const auto row = [&](const char* label, const Sums& mean, double limit) {
    return format("%-27s %11.5g %11.5g %9.1f %9.1f %7.1f\n", label, mean.flops * 1e-9, mean.bytes * 1e-6,
                  limit * 1e3, mean.seconds * 1e3, 100 * (mean.seconds - limit) / measured);
  };
  std::string text =
      format("%lld steps; limits: %.0f GFLOP/s, %.1f GB/s\n", static_cast<long long>(steps_),
             rates.flops * 1e-9, rates.bytes * 1e-9) +
      format("%-27s %11s %11s %9s %9s %7s\n", "part", "GFLOP", "MB", "limit,ms", "time,ms", "lost,%");
  for (size_t part = 0; part < sums_.size(); ++part) {
    const Sums mean{sums_[part].seconds / steps, sums_[part].flops / steps, sums_[part].bytes / steps};
    if (part == static_cast<size_t>(StepPart::kMuon) && mean.seconds == 0) continue;  // another optimizer
    const double limit = std::max(mean.flops / rates.flops, mean.bytes / rates.bytes);
    text += row(kLabels[part], mean, limit);
    reached += limit;
    flops += mean.flops;
    bytes += mean.bytes;
  }
  return text + row("step", {measured, flops, bytes}, reached);
}

void StepProfile::save_trace(const fs::path& path) const {
  const auto microseconds = [](int64_t time) {
    return format("%lld.%03lld", static_cast<long long>(time / 1000), static_cast<long long>(time % 1000));
  };
  const int64_t start = events_.front().begin;
  write_file_atomically(path, [&](OutputFile& file) {
    std::string before = "{\"traceEvents\": [\n";
    for (const Event& event : events_) {
      file.write(before +
                 "{\"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"name\": " + quote_json(event.name->first) +
                 ", \"cat\": " + quote_json(kLabels[static_cast<size_t>(event.part)]) +
                 ", \"ts\": " + microseconds(event.begin - start) +
                 ", \"dur\": " + microseconds(event.end - event.begin) + "}");
      before = ",\n";
    }
    file.write("\n]}\n");
  });
}

StepTrace::StepTrace() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU, ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities,
      {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE, at::RecordScope::BACKWARD_FUNCTION});
}

StepTrace::~StepTrace() {
  if (recording_) profiler::disableProfiler();
}

void StepTrace::save(const fs::path& path) {
  recording_ = false;
  fs::remove(path);
  profiler::disableProfiler()->save(path);
  // The profiler reports no error.
  if (!fs::exists(path)) throw DataError(path, ": the step's trace cannot be written");
}

StepRates StepMeter::rates(const StepResult& result) {
  StepRates rates;
  rates.tokens_per_second = yardstick_.tokens / result.seconds;
  seconds_ += result.seconds;
  rates.seconds = seconds_;
  const double experts = result.activations.num_layers() > 0 ? result.activations.summary().mean : 0;
  const double flops =
      rates.tokens_per_second * (yardstick_.fixed_flops_per_token + experts * yardstick_.flops_per_expert);
  const auto ranks = static_cast<double>(groups_.size());
  rates.tflops = flops * 1e-12;
  if (yardstick_.peak_rate) rates.mfu = flops / (ranks * *yardstick_.peak_rate);
  recent_seconds_ = recent_seconds_ == 0 ? result.seconds : 0.9 * recent_seconds_ + 0.1 * result.seconds;
  rates.seconds_left = recent_seconds_ * static_cast<double>(yardstick_.last_step - result.step);
  if (groups_.traffic) {
    const distributed::Traffic now = groups_.traffic->total();
    rates.sent_bytes = static_cast<double>(now.bytes - before_.bytes);
    if (groups_.device.is_cpu()) rates.exposed_share = (now.seconds - before_.seconds) / result.seconds;
  }
  const auto memory = device::allocated_device_memory(groups_.device);
  rates.memory_bytes = memory ? memory->now : device::process_memory("VmRSS");
  rates.memory_peak_bytes = memory ? memory->peak : device::process_memory("VmHWM");
  return rates;
}

}  // namespace dtopp::train
