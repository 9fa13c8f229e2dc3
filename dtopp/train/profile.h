// Measures where the time of steps goes.
#pragma once

#include <ATen/core/ivalue.h>

#include "dtopp/distributed/process_groups.h"
#include "dtopp/ops/core/torch.h"
#include "dtopp/train/step.h"

namespace at {
struct RecordFunction;
struct ObserverContext;
}  // namespace at

namespace dtopp::train {

// The work of the operators that a step cannot do without: products, attention, norms, look-ups, routing, the
// loss, sums of gradients and the update. Conversions, copies and sums elsewhere cost nothing here, because a
// kernel that is fused further needs none of them. Bytes: every operand is read or written once. A causal
// mask halves the FLOPs of attention, whose backward pass counts twice its forward pass.
struct OperatorCost {
  double flops = 0, bytes = 0;
};
using CostFunction = OperatorCost (*)(c10::ArrayRef<c10::IValue> inputs);

// The parts of a step come from the scopes of RECORD_USER_SCOPE and from a few operators. A backward function
// belongs to the part that created its node. PyTorch calls back for every scope and operator of the training
// thread while a step is recorded; at other times nothing is called.
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
  kMuon,
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
  // FLOPs and bytes      of the operators
  // limit                the greater of FLOPs and bytes, each divided by the machine's rate
  // lost                 measured minus limit, as a share of the step
  //
  // Requires two recorded steps.
  std::string table(const MachineRates& rates) const;
  // Writes the last step as a Chrome trace, which https://ui.perfetto.dev shows. DataError if the file cannot
  // be written.
  void save_trace(const fs::path& path) const;

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

// Records the operators and kernels of one step on a CUDA device, with PyTorch's profiler, which slows the
// step down. Recording begins with the object. Only one object may exist at a time.
class StepTrace {
 public:
  StepTrace();
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Ends the recording and writes it as a Chrome trace, which https://ui.perfetto.dev shows. The device must
  // have finished the step. DataError if the file cannot be written.
  void save(const fs::path& path);

 private:
  bool recording_ = true;
};

// The speed of steps, their MFU, sent bytes and memory.
struct StepRates {
  double tokens_per_second = 0;
  double seconds = 0;              // in steps so far, without validations, saves and pauses
  double tflops = 0;               // of all ranks together, for the experts that tokens activated
  std::optional<double> mfu = {};  // relative to the data sheets of the devices, if they are known
  double seconds_left = 0;         // until the last step, at the recent speed
  uint64_t memory_bytes = 0;       // now: resident, or allocated on a device with separate memory
  uint64_t memory_peak_bytes = 0;  // its maximum so far
  // With several ranks: bytes that this rank sent in the step, and on CPUs the share of the step that it
  // waited for communication.
  std::optional<double> sent_bytes{}, exposed_share{};
};

// The reference values for a step.
struct StepYardstick {
  double fixed_flops_per_token = 0;
  double flops_per_expert = 0;  // per token, for one more active expert in each layer
  double tokens = 0;            // per step
  int64_t last_step = 0;
  double seconds_before = 0;          // in steps of earlier processes of this run
  double matrix_rate = 0;             // measured FLOP/s of one rank's device
  std::optional<double> peak_rate{};  // FLOP/s in its data sheet
};

class StepMeter {
 public:
  StepMeter(const StepYardstick& yardstick, const distributed::ProcessGroups& groups)
      : yardstick_(yardstick), groups_(groups), seconds_(yardstick.seconds_before) {}

  // Call at the start of a step. The previous step's result may still be outstanding.
  void begin() {
    if (groups_.traffic) before_ = groups_.traffic->total();
  }
  StepRates rates(const StepResult& result);

 private:
  StepYardstick yardstick_;
  const distributed::ProcessGroups& groups_;
  distributed::Traffic before_;
  double seconds_, recent_seconds_ = 0;
};

}  // namespace dtopp::train
