// Gathers the numbers of an optimizer step, over its micro-batches on all ranks, by name.
//
// All decisions about a step (step_decision.h) and all reports of it use these numbers only. Every rank holds
// the same numbers, so all ranks decide alike. Example with 2 micro-batches, one loss term and 3 chunks:
//
// field             local, on each rank       all-reduced sum           Reduce         result
// losses            [2, 2], other rows zero   [2, 2]                    kSumRows       [2]
// grad_squares      [3], other chunks zero    [3]                       kSumRows       []
// overflowed        []                        []                        kSum           []
// max_assignments   [L]                       [ranks, L]: a row per     kMaxOverRanks  [L]
//                                             rank, made by reduce()
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::train {

// How a field's values on the ranks become one: their sum, that sum over the first dimension, or the maximum.
enum class Reduce { kSum, kSumRows, kMaxOverRanks };

struct StepField {
  std::string name;
  std::vector<int64_t> shape;  // on one rank
  Reduce reduce = Reduce::kSum;
};

// The fields of a step, the same on every rank. Their order is that of the all-reduced vector.
using StepSchema = std::vector<StepField>;

// Named numbers, f64. Whole numbers are exact below 2^53.
class StepNumbers {
 public:
  // One all-reduce of all fields, on the device of `options`. A field that `local` lacks is zero, as on a
  // rank without micro-batches. Throws std::invalid_argument if a field's size differs from the schema.
  // Collective.
  static StepNumbers reduce(const StepSchema& schema, const ops::NamedTensors& local,
                            const at::TensorOptions& options, distributed::Collectives& ranks);

  // Adds numbers that are the same on every rank.
  void add(std::string name, const at::Tensor& value);
  bool has(std::string_view name) const;
  const ops::NamedTensors& all() const { return values_; }
  // Throws std::invalid_argument if no number has this name.
  const at::Tensor& operator[](std::string_view name) const {
    return ops::find_tensor(values_, name, "StepNumbers");
  }
  // Removes the number. It is then not copied to the host.
  at::Tensor take(std::string_view name);
  double number(std::string_view name) const { return (*this)[name].item<double>(); }
  // Requires numbers on the host (Copy::get).
  std::vector<double> list(std::string_view name) const;

  // Copies all numbers to the host without blocking.
  class Copy {
   public:
    Copy() = default;
    explicit Copy(const StepNumbers& numbers);
    // Waits for the copy.
    StepNumbers get() const;

   private:
    std::vector<StepField> fields_;
    ops::HostCopy copy_;  // one copy for all fields: the fixed cost of a copy exceeds its transfer time
  };

 private:
  ops::NamedTensors values_;
};

}  // namespace dtopp::train
