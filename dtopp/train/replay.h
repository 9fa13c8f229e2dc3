// Repeats one step of a run and finds its first non-finite value.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/train/trainer.h"

namespace dtopp::train {

enum class Pass { kForward, kBackward };

// An operation with a non-finite output from finite inputs.
struct NonfiniteOrigin {
  int64_t order = 0;  // its position among all operations, from 1
  Pass pass = Pass::kForward;
  std::vector<std::string> scopes;  // outermost first
  std::string operation;            // "aten::mul"
  size_t output = 0;                // index of the first non-finite output
  std::string type{};               // "bf16 [512, 64]"
  int64_t nan = 0, infinite = 0;    // number of elements
  std::vector<int64_t> first_index{};
  double largest_input = 0;  // magnitude
};

// The largest finite magnitude that a scope computed in one pass.
struct LargestValue {
  std::string scope;  // the innermost
  Pass pass = Pass::kForward;
  std::string operation;
  double magnitude = 0;
};

// Finds the operation that computed the first non-finite value, forward or backward.
//
// PyTorch calls its profiler's hooks (at::RecordFunction) around each operation. The watch reduces the inputs
// and outputs of each to their largest magnitude. The scopes of RECORD_USER_SCOPE name the place: a
// micro-batch, a layer.
//
// It watches the operations of the thread that creates it, while it exists. A process can have one at a time.
// It makes operations several times slower.
class NonfiniteWatch {
 public:
  NonfiniteWatch();
  ~NonfiniteWatch();

  const std::optional<NonfiniteOrigin>& origin() const;
  // One entry per scope and pass, in the order of computation.
  const std::vector<LargestValue>& largest() const;

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
};

// Runs the trainer's next step under a NonfiniteWatch. Returns on rank 0, from the rank whose first
// non-finite value has the fewest operations before it:
//
//   step, finite   the step, and whether the run applied it
//   loss, losses, grad_norm
//   parameters     before the step: names of those with non-finite values
//   origin         the first non-finite value, or null; with its micro-batch's samples
//   largest        the largest magnitude of each layer and pass
//
// Collective: every rank
nlohmann::ordered_json replay_step(Trainer& trainer, int64_t micro_batch_size);

// The same as lines of text.
std::string replay_text(const nlohmann::ordered_json& replay);

}  // namespace dtopp::train
