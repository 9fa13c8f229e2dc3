// Measures where the time of training steps on a CPU goes, and compares it with the machine's limits.
//
// The parts of a step come from the scopes of RECORD_USER_SCOPE and from a few operators. A backward function
// belongs to the part that created its node. PyTorch calls back for every scope and operator of the training
// thread while a step is recorded; at other times nothing is called.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/train/operator_costs.h"

namespace at {
struct RecordFunction;
struct ObserverContext;
}  // namespace at

namespace dtopp::train {

enum class StepPart : uint8_t {
  kEmbedding,
  kNorms,
  kAttention,
  kAttentionBackward,
  kRouter,
  kFeedForward,
  kLoss,
  kGradientSums,
  kGradientNorm,
  kUpdate,
  kOther,
  kCount,
};

struct MachineRates {
  double flops = 1, bytes = 1;  // per second
};

class StepProfile {
 public:
  // Records the step that the calling thread runs until the object ends. Only one may exist per thread.
  // The first step warms up memory and does not count.
  class Recording;

  // Returns the mean step as text, one line per part:
  //
  // FLOPs and bytes      of the operators in operator_costs.h
  // limit                the greater of FLOPs and bytes, each divided by the machine's rate
  // lost                 measured minus limit, as a share of the step
  //
  // Requires two recorded steps.
  std::string table(const MachineRates& rates) const;
  // Writes the last step as a Chrome trace, which https://ui.perfetto.dev shows. DataError if the file cannot
  // be written.
  void save_trace(const std::filesystem::path& path) const;

 private:
  struct Name;
  using Names = std::map<std::string, Name, std::less<>>;
  // The meaning of a name.
  struct Name {
    std::optional<StepPart> part{};  // nullopt: that of the outer event
    CostFunction cost = nullptr, move = nullptr;
  };
  struct Event {
    Names::const_pointer name;
    StepPart part;
    int64_t begin, end;  // nanoseconds
  };
  struct Open {
    size_t event;
    StepPart part;
    bool counted;  // its cost, or that of an outer event, is counted
  };
  struct Sums {
    double seconds = 0, flops = 0, bytes = 0;
  };

  void begin(const at::RecordFunction& function);
  void end();
  // Adds the time since the last call to the part that ran.
  int64_t charge();
  Names::const_pointer find(const at::RecordFunction& function);
  StepPart part_of_node(int64_t sequence_number) const;
  void note_nodes(StepPart part);

  Names names_;
  std::vector<Event> events_;                         // of the last step
  std::vector<Open> open_;                            // innermost last
  std::vector<std::pair<uint64_t, StepPart>> nodes_;  // the part of autograd nodes from a number on
  std::array<Sums, static_cast<size_t>(StepPart::kCount)> sums_{};
  int64_t last_ = 0;   // nanoseconds
  int64_t steps_ = 0;  // that count
  bool warm_ = false;
};

class StepProfile::Recording {
 public:
  Recording(StepProfile& profile, int64_t step);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);

  uint64_t handle_;
  std::unique_ptr<at::RecordFunction> step_;
};

}  // namespace dtopp::train
