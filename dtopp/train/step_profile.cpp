#include "dtopp/train/step_profile.h"

#include <algorithm>
#include <chrono>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/train/nonfinite_watch.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {
namespace {

constexpr auto kLabels = std::to_array<const char*>(
    {"embedding", "norms, rotation, residuals", "attention, forward", "attention, backward", "router",
     "experts, feed-forward", "loss", "gradient sums", "gradient norm", "update", "other"});
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
  return std::nullopt;
}

thread_local StepProfile* recorded = nullptr;

}  // namespace

StepProfile::Names::const_pointer StepProfile::find(const at::RecordFunction& function) {
  const std::string_view text = function.name();
  if (const auto found = names_.find(text); found != names_.end()) return &*found;
  Name name;
  switch (function.scope()) {
    case at::RecordScope::USER_SCOPE:
      name.part = part_of_scope(text);
      break;
    case at::RecordScope::BACKWARD_FUNCTION:
      if (text.ends_with("AccumulateGrad")) name.part = StepPart::kGradientSums;
      break;
    default:
      name = {.part = part_of_operator(text), .cost = cost_of(text), .move = cost_of_move(text)};
  }
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
    const double limit = std::max(mean.flops / rates.flops, mean.bytes / rates.bytes);
    text += row(kLabels[part], mean, limit);
    reached += limit;
    flops += mean.flops;
    bytes += mean.bytes;
  }
  return text + row("step", {measured, flops, bytes}, reached);
}

void StepProfile::save_trace(const std::filesystem::path& path) const {
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

}  // namespace dtopp::train
